# The experiment on clips in its shortest form: softmax, then what replaces it; a page with clips that play; going on after a stop.
. "$CLI/lib.inc"
. "$CLI/data.inc"
small_clips clips
mhla reproduce video --help | sed -n 1,4p
video="mhla reproduce video --quick --data clips --work w --threads 1"
$video >/dev/null 2>log &
until grep -q 'part 5 of 8' log 2>/dev/null; do sleep 0.05; done # softmax goes on from its own weights
kill -INT $!; wait $!; echo "-> $?"
tail -n 1 log
json <w/video-quick/results.jsonl >/dev/null; wc -l <w/video-quick/results.jsonl | tr -d ' '
grep -c '"share_512":.*"share_2048":' w/video-quick/results.jsonl # of what replaces softmax, beside it
$video --out pages >table 2>/dev/null; echo "-> $?"
$video --out other 2>/dev/null | sed '/^Results/d' >again; sed '/^Results/d' table | diff - again
diff -r pages other && ls pages
grep -c 'does not fail at this size\|fails at this size' pages/video-quick.md
grep -o '!\[[^]]*\]([^)]*)' pages/video-quick.md | sed 's/.*(\(.*\))/\1/' | while read -r file; do test -s "pages/$file" || echo "$file is missing"; done
for arm in data mhla-adapted; do python3 - "pages/video-quick-clips-$arm.png" <<'END'
import struct, sys
bytes = open(sys.argv[1], "rb").read()
print(struct.unpack(">II", bytes[16:24]), bytes.count(b"fcTL"), "frames")
END
done
for run in w/runs/*; do # what began as softmax, and by how much it is new
    python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); print(r["model"]["attention"], r["model"].get("hybrid"), bool(r["train"].get("init")))' "$run/recipe.json"
done | sort | uniq -c | sed 's/^ *//'
rm -rf w pages other clips
