# A text-to-image model that was trained here makes images of prompts: with its encoder, with rows that came along, from latents; made again;
# what is refused.
. "$CLI/lib.inc"
. "$CLI/dit.inc"
. "$CLI/lm.inc"
. "$CLI/vae.inc"
. "$CLI/captions.inc"
small_captions data
small_lm encoder
small_vae vae '' 8 3
mhla captions data --encoder encoder --instruction 'It is ' --out rows --quiet >/dev/null
tiny="--model sana_nano --batch 8 --steps 3 --sample.columns 0 --sample.sampler unipc --sample.steps 4 --sample.guidance 1.5"
mhla train --source data --captions rows $tiny --in_channels 3 --sample_size 8 --patch_size 2 --out run --quiet; echo "-> $?"
mhla sample -m run -p 'a bag, number 3' -n 2 -o one.png | figures; echo "-> $?"
mhla sample -m run/last -p ' a bag, number 3 ' -n 2 --threads 1 --batch 1 -o same.png --quiet >/dev/null && mhla sample --like one.png -o again.png | tail -n 1
mhla sample -m run -p trousers --negative 'a bag' -g 3 --steps 2 --sampler euler -o two.png --json | json | grep -E 'pipeline|sampler|steps|guidance|width|vae'
mhla sample -m run -p trousers --dry-run >plan; echo "dry run -> $?"; cut -d ' ' -f 1 plan
printf 'a red bag\n\ntrousers\n' >words
mhla sample -m run --prompts words -n 2 -o folder --quiet >/dev/null; echo "-> $?"; ls folder
echo '# without the encoder: rows that came along'
mhla sample -m run -p 'a red bag' -o with.npy --quiet >/dev/null
mhla captions words --encoder encoder --instruction 'It is ' --out run/captions --quiet >/dev/null
mhla convert run shipped --dtype bfloat16 | figures
mhla captions words --encoder encoder --instruction 'It is ' --rows bfloat16 --out shipped/captions --quiet >/dev/null; echo "-> $?"
mv encoder gone
mhla sample -m run -p 'a red bag' -o without.npy --quiet >/dev/null; echo "-> $?"; cmp with.npy without.npy && echo same
mhla sample -m run -p 'a blue bag' -o x.png 2>&1 | sed 's/encoder .*, which/encoder ..., which/'
mhla sample -m run -p 'a blue bag' --text-encoder gone -o blue.png --quiet >/dev/null; echo "-> $?"
echo '# as a folder of weights and rows in bfloat16'
mhla sample -m shipped -p 'a red bag' -o shipped.png --quiet >/dev/null; echo "-> $?"
mhla sample --like shipped.png -o x.png --quiet | tail -n 1; rm x.png
mhla sample -m shipped -p 'a red bag' --dry-run | grep -c 'not needed'
mhla sample -m shipped -p 'a blue bag' --dry-run 2>&1 | sed 's/encoder .*, which.*/encoder ..., which .../'
grep -a -o BF16 shipped/captions/rows-00000.safetensors
mhla captions words --encoder gone --instruction 'It is ' --out shipped/captions; echo "-> $?"
mhla captions words --encoder gone --rows float16 --out x; echo "-> $?"
echo '# from latents'
mhla latents data --vae vae --size 16 --out latents --quiet >/dev/null
mhla train --source latents --captions rows $tiny --out latent --quiet; echo "-> $?"
mhla sample -m latent -p trousers --text-encoder gone --vae vae -o l.png --json | json | grep -E 'width|vae '
echo '# refused'
mhla sample -m run -o x.png; echo "-> $?"
mhla sample -m run -c 1 -o x.png; echo "-> $?"
mhla sample -m latent -p trousers --text-encoder gone -o x.png; echo "-> $?"
cp -r gone other && mhla convert gone other2 --dtype bfloat16 >/dev/null && cp gone/tokenizer.json other2
mhla sample -m run -p 'a blue bag' --text-encoder other2 -o x.png 2>&1 | sed 's/[0-9a-f]\{12\}/.../g'
mhla sample -m run -p 'a blue bag' --text-encoder vae -o x.png; echo "-> $?"
rm -r run/captions
mhla captions words --encoder gone --out run/captions --quiet >/dev/null
mhla sample -m run -p 'a red bag' -o x.png; echo "-> $?"
sed -i 's/"sampler": "unipc"/"sampler": "best"/' run/last/text.json run/best/text.json
mhla sample -m run -p 'a red bag' -o x.png; echo "-> $?"
ls x.png 2>/dev/null
