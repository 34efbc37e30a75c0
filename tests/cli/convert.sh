# A checkpoint by hand, converted in every way; what is wrong leaves nothing behind.
. "$CLI/lib.inc"
put() { # put FILE HEADER DATA: header of less than 256 bytes
    printf "\\$(printf %03o ${#2})\\0\\0\\0\\0\\0\\0\\0%s$3" "$2" >"$1"
}
mkdir in; cd in || exit 1
put x.safetensors '{"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[1],"data_offsets":[8,16]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}' '\0\0\200\77\0\0\0\300\1\0\0\0\0\0\0\0'
echo '{"model": "none"}' >config.json
cd ..
mhla convert in/x.safetensors same.safetensors; echo "-> $?"
mhla convert in half.safetensors --dtype float16; echo "-> $?"
mhla convert half.safetensors back.safetensors --dtype float32; echo "-> $?"
cmp same.safetensors back.safetensors && echo "the same bytes"
tail -c +9 half.safetensors | head -c 136; echo
mhla convert in folder --shard-size 8 --dtype bfloat16; echo "-> $?"
for name in tokenizer.json tokenizer_config.json generation_config.json notes.txt; do echo '{}' >in/$name; done
rm -r folder; mhla convert in folder --shard-size 8 --dtype bfloat16; echo "with a tokenizer -> $?"
ls folder; cat folder/config.json folder/model.safetensors.index.json
mhla convert folder/model.safetensors.index.json one --json; echo "-> $?"
ls one
mhla convert folder same.safetensors --dtype float32 && cmp same.safetensors back.safetensors && echo "the same bytes"
echo "failures:"
mhla convert nothing x.safetensors; echo "-> $?"
mhla convert in folder; echo "-> $?"
mhla convert in/config.json x; echo "-> $?"
head -c 100 in/x.safetensors >cut.safetensors
mhla convert cut.safetensors x.safetensors; echo "-> $?"
put big.safetensors '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' '\0\0\200\107'
mhla convert big.safetensors x.safetensors --dtype float16; echo "-> $?"
mhla convert big.safetensors x --dtype float16; echo "-> $?"
mhla convert some.gguf x; echo "-> $?"
mhla convert in nowhere/x.safetensors 2>&1 | sed 's/[0-9a-f]*\.mhla-tmp/N.mhla-tmp/'
put large.safetensors '{"a":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}}' ''
head -c 100000 /dev/zero >>large.safetensors
for out in same.safetensors x x.safetensors; do # a file may have 50 blocks only; the old one stays
    (trap '' XFSZ; ulimit -f 50; mhla convert large.safetensors $out 2>&1; echo "-> $?") | sed 's/[0-9a-f]*\.mhla-tmp/N.mhla-tmp/'
done
cmp same.safetensors back.safetensors && echo "the same bytes"
mhla convert in; echo "-> $?"
mhla convert in x --dtype float64; echo "-> $?"
mhla convert in x --shard-size 5TB; echo "-> $?"
mhla convert in x.safetensors --shard-size 5; echo "-> $?"
ls
echo '-- a shipped model by its name'
ln -s "$CLI/../../models" models
mhla convert lm-small named.gguf; echo "-> $?"
