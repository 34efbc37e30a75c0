# All parts of the demo in their shortest form: two updates on images like Fashion-MNIST's. Figures and the generated text are masked.
. "$CLI/lib.inc"
. "$CLI/data.inc"
small_data data 32 28
ln -s "$CLI/../../models" models
mhla demo --quick --steps 2 --data data >out 2>err; code=$?
echo "-> $code"
[ $code = 0 ] || cat err
sed -E '1d; /^In the beginning/,/^$/{/^$/!d}; s/\([0-9.]+ m?s\)/(TIME)/; /^\* measured/d; s/ was (busy|quiet): .*/ was BUSY OR QUIET/; s/: [0-9.]+ points (better|worse|apart).*/: DIFFERENCE/; s/, so MHLA is not faster here//' out | figures | uniq
page=runs/demo-1/demo.html
for part in '<h2>Verdict' '<h2>Shipped models' '<h2>Time and memory by length' '<h2>Learning at 1,024' '<h2>What one query' '"chart"' '"map"'; do
    echo "$part: $(grep -c -- "$part" $page)"
done
grep -c 'http://\|https://' $page
ls runs/demo-1
echo '-- without models and without data'
rm models
mhla demo --quick --steps 1 --data none >out 2>err; echo "-> $?"
figures <err
grep -c 'is skipped\|^Verdict\|^All of it' out
mhla demo --steps 0; echo "-> $?"
