# Names and texts from elsewhere (folders, files, classes, tensors, keys, pieces) must not steer the terminal: nothing that the
# program prints holds a control character but its own line breaks, in UTF-8 or raw, nor one that turns or hides others.
. "$CLI/lib.inc"
. "$CLI/data.inc"
. "$CLI/lm.inc"
. "$CLI/dit.inc"
e=$(printf '\033[31mX\302\233\177\342\200\256\rY') # for names of files; raw bytes and a newline below
r=$(printf 'raw\233\012Z') n=$(printf '\012Z')
j='\u001b[31mX\u009b\u007f\u202e\n\rY' # the same in JSON
put() { # put FILE HEADER DATA: header of less than 256 bytes
    printf "\\$(printf %03o ${#2})\\0\\0\\0\\0\\0\\0\\0%s$3" "$2" >"$1"
}
bad=$(printf '[\001-\011\013-\037\177]\|\302[\200-\237]\|\342\200\256')
try() { # try WHAT COMMAND...: its exit code, and lines that would reach the terminal as they must not
    what=$1; shift
    "$@" >out 2>&1 </dev/null; echo "$what -> $?"
    LC_ALL=C grep -a "$bad" out | od -An -c | sed 4q
    iconv -f utf-8 -t utf-8 out >/dev/null 2>&1 || { echo 'no UTF-8:'; od -c out | sed 4q; }
}
base64 -d >a.png <<END
iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAGUlEQVR42mPUYIAAJgacDMZLDAwMYfjVAAA0nAFfFOStxgAAAABJRU5ErkJggg==
END
for split in train test; do
    for class in "a$e" "b$n"; do
        mkdir -p "d$e/$split/$class"
        for i in 1 2 3 4 5 6 7 8; do cp a.png "d$e/$split/$class/$i$e.png"; done
    done
done
echo '# images'
fit="$small_model --channels 1 --batch 4 --steps 2"
try train mhla train --source "d$e" $fit --out "run$e"
try 'train into a raw name' mhla train --source "d$e" $fit --out "run$r"
try 'train there again' mhla train --source "d$e" $fit --out "run$r"
try 'train on nothing' mhla train --source "no$e" $fit --out "run$e$e"
try eval mhla eval "run$e" --classes; grep -c 'a.x1b.31mX.u009b.x7f.u202e.rY$' out; grep -c ' b.nZ$' out
try 'eval --json' mhla eval "run$e" --json
try classify mhla classify "d$e/test/a$e/1$e.png" --model "run$e"
try 'classify --json' mhla classify "d$e/test/a$e/1$e.png" --model "run$e" --json
try 'classify nothing' mhla classify "no$e$r" --model "run$e"
try measure mhla measure "d$e" "d$e/test" --features "run$e"
try 'measure nothing' mhla measure "d$e" "no$r" --features "run$e"
try analyze mhla analyze "run$e" --samples 2 --out "look$e"
try plot mhla plot "run$e" --output "page$e.html"
try 'plot nothing' mhla plot "no$e" "no$r"
LC_ALL=C grep -ac "$bad" "page$e.html" "look$e/report.html" | sed 's/.*://'
LC_ALL=C grep -ac "$(printf '[\001-\010\013-\037]')" "look$e/analysis.csv" "look$e/analysis.json" | sed 's/.*://'
mkdir -p "d$r/train/a" "d$r/train/b$r" && cp a.png "d$r/train/a" && cp a.png "d$r/train/b$r"
try 'train on a class that is not UTF-8' mhla train --source "d$r" $fit --out x
try info mhla info "run$e"
try 'info --tensors' mhla info "run$e" --tensors
try 'info nothing' mhla info "no$r"
try data mhla data "no$e"
try 'data from nothing' mhla data fashion-mnist "there$e" --from "no$e"
try reproduce mhla reproduce "no$e$r"
try 'reproduce on nothing' mhla reproduce heads --quick --data "no$e" --work "w$e"
echo '# recipes, options'
printf '{"train": {"%s": 1}}' "$j" >"r$e.json"; try 'a key' mhla train "r$e.json" --out x
printf '{"train": {"rate": "%s"}}' "$j" >"r$e.json"; try 'a value' mhla train "r$e.json" --out x
printf '"k\233\033" = 1\n' >"r$e.toml"; try 'a recipe that is not TOML' mhla train "r$e.toml" --out x
try 'a flag' mhla train "--$e" 1 --out x
try 'an option' mhla info "--$e"
try 'a verb' mhla "$e$r"
echo '# tensors, metadata'
put "t$e.safetensors" "{\"__metadata__\":{\"$j\":\"$j\"},\"$j\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}" '\0\0\200\77'
try convert mhla convert "t$e.safetensors" "u$e.safetensors"
put "t$e.safetensors" "{\"$j\":{\"dtype\":\"$j\",\"shape\":[1],\"data_offsets\":[0,4]}}" '\0\0\200\77'
try 'convert an unknown type' mhla convert "t$e.safetensors" v.safetensors
put "t$e.safetensors" "{\"$j\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,4]}}" '\0\0\200\77'
try 'convert a wrong shape' mhla convert "t$e.safetensors" v.safetensors
printf 'GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0\033[3\302\233\10\0\0\0\4\0\0\0\0\0\0\0\033\033\033\033' >"g$e.gguf"
try 'info of a GGUF' mhla info "g$e.gguf"
try 'convert a GGUF' mhla convert "g$e.gguf" "h$e.gguf"
echo '# images out of noise'
small_dit m; sed -i "s/\"Bag\"/\"$(printf %s "$j" | sed 's/\\/\\\\/g')\"/; s/\"model_type\"/\"$(printf %s "$j" | sed 's/\\/\\\\/g')\": 1, &/" m/config.json
try 'a key of config.json' mhla sample -m m --steps 1 -n 1 --out x.png
small_dit m; sed -i "s/\"Bag\"/\"$(printf %s "$j" | sed 's/\\/\\\\/g')\"/" m/config.json; mv m "m$e"
try sample mhla sample -m "m$e" --steps 1 -n 1 --out "p$e.png"
try 'sample --like' mhla sample --like "p$e.png" --out "q$e.png"
try 'sample a folder' mhla sample -m "m$e" --steps 1 -n 1 --out "p$r"
try 'no such class' mhla sample -m "m$e" --steps 1 -c "$e" --out x.png
find "p$r" -type d | LC_ALL=C grep -a "$(printf 'X[^_]')" # folders of classes are tame, too
echo '# text'
small_lm l x; mv l "l$e"; printf 'some \033[31m text' >"text$e"
try generate mhla generate -m "l$e" -f "text$e" --tokens 4 --seed 1 --state "s$e" --json
try 'generate without a prompt' mhla generate -m "l$e" -f "no$e"
try tokenize mhla tokenize "l$e" "text$e" --pieces
try 'tokenize --json' mhla tokenize "l$e" "text$e" --pieces --json
try 'tokenize train' mhla tokenize train "k$e.json" "text$e" --vocabulary 270
try 'eval text' mhla eval "l$e" "text$e"
try 'eval no text' mhla eval "l$e" "no$r"
try 'info of text' mhla info "l$e"
try 'chat with another state' mhla chat -m "l$e" --state "s$e"
sed -i 's/messages/mess\\u001bages/' "l$e/tokenizer_config.json"; try 'a wrong template' mhla chat -m "l$e"
echo '# what a model says: as it is into a file, tame on a terminal'
printf 'a\033[31mb\tc\302\233\342\202\254' >said
mhla tokenize k*.json said | mhla tokenize k*.json --decode | cmp - said && echo 'the same bytes'
mhla tokenize k*.json said >ids
script -qec "mhla tokenize k*.json --decode <ids" /dev/null </dev/null | tr -d '\r'; echo
