# A tokenizer trained on the spot; text to ids and back, shards; what is wrong.
. "$CLI/lib.inc"
seeds=$CLI/../fuzz/corpus
printf 'the cat sat on the mat, the cat sat on the hat\n\fthe rat\n' >text.txt
mhla tokenize train t.json text.txt --vocabulary 270 --special-tokens '<a>,<|endoftext|>' | figures; echo "-> $?"
mhla tokenize t.json --text 'the cat<a>'; echo "-> $?"
mhla tokenize t.json --text 'the cat<a>' --plain --pieces; echo "-> $?"
mhla tokenize t.json text.txt >ids; echo "-> $?"
mhla tokenize t.json --decode ids | cmp - text.txt && echo "the same text"
echo '[259, 0, 1]' | mhla tokenize t.json --decode --skip-special; echo "-> $?"
printf 'a b' | mhla tokenize "$seeds/fuzz_tokenizer_json/llama_legacy" --special --json --pieces; echo "-> $?"
mhla tokenize "$seeds/fuzz_tokenizer_model/fallback" --text 'Hello world'; echo "-> $?"
printf 'one\n\f\ntwo\n' >two.txt
mhla tokenize t.json --out x.shard text.txt two.txt; echo "-> $?"
mhla tokenize t.json --out x.shard text.txt --json | grep -v seconds
mhla tokenize t.json text.txt --time | sed 's/[0-9.]* MB/N MB/'
# a name that is no UTF-8 makes none of the JSON
odd=$(printf 'o"\303\251\355\240\200\377.txt'); echo a >"$odd"; mhla tokenize t.json "$odd" --json | grep file; rm "$odd"
echo "failures:"
printf 'abc\377' >bad.txt
mhla tokenize t.json bad.txt; echo "-> $?"
mhla tokenize t.json none.txt; echo "-> $?"
mhla tokenize none.json --text x; echo "-> $?"
mhla tokenize . --text x; echo "-> $?"
mhla tokenize "$seeds/fuzz_tokenizer_model/unigram_rules" --text 'the ﬁsh' | tr '\n' ' '; echo
printf '\012\003\012\001a\022\002\030\003' >word; mhla tokenize word --text x; echo "-> $?"
mhla tokenize text.txt --text x; echo "-> $?"
echo '1 2 x' | mhla tokenize t.json --decode; echo "-> $?"
echo '1 2 5000' | mhla tokenize t.json --decode; echo "-> $?"
mhla tokenize t.json --out y.shard bad.txt; echo "-> $?"
mhla tokenize train y.json bad.txt; echo "-> $?"
mhla tokenize train y.json text.txt --vocabulary 10; echo "-> $?"
mhla tokenize train y.json; echo "-> $?"
mhla tokenize; echo "-> $?"
mhla tokenize t.json text.txt --text x; echo "-> $?"
mhla tokenize t.json --decode --json; echo "-> $?"
mhla tokenize t.json --skip-special; echo "-> $?"
mhla tokenize t.json --time --pieces; echo "-> $?"
mhla tokenize t.json --out y.shard; echo "-> $?"
mkfifo pipe; mhla tokenize t.json --out pipe text.txt; echo "-> $?"; [ -p pipe ] && echo 'still a pipe'
mhla tokenize t.json --out . text.txt; echo "-> $?"
mhla tokenize t.json --out no/where text.txt; echo "-> $?"
ls
mhla tokenize --help
mhla tokenize train --help
