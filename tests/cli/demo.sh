# All parts of the demo in their shortest form: two updates on images like Fashion-MNIST's, no shipped models. Figures are masked.
. "$CLI/lib.inc"
. "$CLI/data.inc"
small_data data 32 28
mhla demo --quick --steps 2 --data data >out 2>err || cat err
sed -E '1d; /^\* measured/d; s/ was (busy|quiet): .*/ was BUSY OR QUIET/; s/: [0-9.]+ points (better|worse|apart).*/: DIFFERENCE/; s/, so MHLA is not faster here//' out | figures | uniq
page=runs/demo-1/demo.html
for part in '<h2>Verdict' '<h2>Time and memory by length' '<h2>Learning at 1,024' '<h2>What one query' '"chart"' '"map"'; do
    echo "$part: $(grep -c -- "$part" $page)"
done
grep -c 'http://\|https://' $page
ls runs/demo-1
mhla demo --steps 0; echo "-> $?"
