# Figures on the cards of the shipped models, measured again where the data lies in data/: `mhla data fashion-mnist`, `mhla data text`.
root=$CLI/../..
[ -d "$root/data/fashion-mnist" ] && [ -f "$root/data/text/validation.txt" ] || { echo 'skip: data/fashion-mnist or data/text is not there'; exit; }
ln -s "$root/models" models
ln -s "$root/data" data
mhla eval deit-fashion fashion-mnist --limit 500 --json >eval; echo "-> $?"
awk -F '[:,]' '/"accuracy"/ { printf "%.2f %%\n", 100 * $2; exit }' eval >got
sed -n 's/^| accuracy on the first 500 test images.*| \(.*\) |$/\1/p' models/deit-fashion/README.md >card
paste got card | awk '{ d = $1 - $3; exit !(d <= 0.41 && d >= -0.41) }' && echo 'deit-fashion: the accuracy of the card, to two images'
mhla eval lm-small data/text/validation.txt --limit 20000 --json >eval; echo "-> $?"
sed -n 's/.*"bits_per_byte": \([0-9.]*\).*/\1/p' eval >got
sed -n 's/^| bits per byte.*| \(.*\) |$/\1/p' models/lm-small/README.md >card
paste got card | awk '{ d = $1 - $2; exit !(d <= 0.002 && d >= -0.002) }' && echo 'lm-small: the bits per byte of the card, to 0.002'
mhla sample -m dit-fashion --classes all -n 10 --guidance 2 --steps 25 --seed 0 --out samples --quiet >/dev/null; echo "-> $?"
mhla measure fashion-mnist samples --features deit-fashion --size 28x28 --json >eval; echo "-> $?"
sed -n 's/.*"accuracy": \([0-9.]*\).*/\1/p' eval >got
sed -n 's/^| share of 100 images.*| \(.*\) %.*/\1/p' models/dit-fashion/README.md >card
paste got card | awk '{ d = 100 * $1 - $2; exit !(d <= 2.01 && d >= -2.01) }' && echo 'dit-fashion: the share of the card, to two images'
sed -n 's/.*"frechet_distance": \([0-9.]*\).*/\1/p' eval >got
sed -n 's/^| Fr.*| \(.*\) |$/\1/p' models/dit-fashion/README.md >card
paste got card | awk '{ d = $1 - $2; exit !(d <= 0.1 && d >= -0.1) }' && echo "dit-fashion: the distance of the card, to 0.1"
