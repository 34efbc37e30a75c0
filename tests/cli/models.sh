# The shipped models: the hash on the card is that of the file; each opens by its name and does its work. Texts are those of the card,
# made with plain kernels, which every x86-64 has.
ln -s "$CLI/../../models" models
for name in lm-small dit-fashion deit-fashion; do
    card=models/$name/README.md
    file=models/$name/$(sed -n 's/^| file | \([^,]*\),.*/\1/p' $card)
    hash=$(sed -n 's/^| SHA-256 | `\(.*\)` |$/\1/p' $card)
    [ "$(sha256sum "$file" | cut -d ' ' -f 1)" = "$hash" ] && echo "$name: the hash of the card"
    mhla info $name >/dev/null; echo "info $name -> $?"
    for part in data recipe command program 'license of the weights'; do grep -q "^| $part | ..*|\$" $card || echo "$card: no $part"; done
    grep -q '^## Limits' $card || echo "$card: no limits"
done
[ "$(du -sk models/ | cut -f 1)" -le 12288 ] && echo 'at most 12 MiB'
echo '-- text'
MHLA_ISA=plain mhla generate -m lm-small -p "In the beginning" --seed 0 --tokens 40 >text; echo "-> $?"
{ printf 'In the beginning'; cat text; } >got
awk '/^```text/ { inside = 1; next } /^```/ { if (inside) exit } inside' models/lm-small/README.md >card
if [ "$(uname -m)" != x86_64 ] || cmp got card; then echo 'the first sample of the card'; fi
echo '-- images'
mhla sample -m dit-fashion --classes Bag --steps 4 --seed 3 --out bag.png --quiet >/dev/null; echo "-> $?"
mhla classify bag.png --model deit-fashion --json | grep -c '"probability"'
mhla sample --like bag.png --quiet | grep -c 'the same pixels'
echo '-- names'
mhla eval lm-large x.txt 2>&1
mkdir -p prefix/bin prefix/share/mhla && cp "$(command -v mhla)" prefix/bin/mhla && mv models prefix/share/mhla/models
prefix/bin/mhla info deit-fashion >/dev/null; echo "installed -> $?"
mhla info deit-fashion 2>/dev/null; echo "not there -> $?"
