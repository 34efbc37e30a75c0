# A dataset encoded once, a diffusion model trained on its latents, decoded pictures; killed and made again to the same bytes.
. "$CLI/lib.inc"
. "$CLI/data.inc"
. "$CLI/vae.inc"
small_data data 80
small_vae vae
small_vae other 1 8
tiny="--model dit_micro --patch 1 --dim 16 --depth 1 --heads 1 --blocks 2 --batch 16 --steps 6 --sample.columns 1 --sample.steps 2"
mhla latents --help
mhla latents data --vae vae --size 8 --out latents 2>err; echo "-> $?"; cat err | tail -1 | figures
ls latents
sed -E 's/"source": .*"/"source": "..."/' latents/latents.json
echo "# what is missing is made again, to the same bytes; what is there is kept"
mkdir killed && cp latents/latents.json latents/test-00000.safetensors killed
mhla latents data --vae vae --size 8 --out killed --threads 1 --quiet; echo "-> $?"
diff -r latents killed && echo same
mhla latents data --vae vae --out latents --json 2>/dev/null | json
echo "# training"
mhla train --source latents $tiny --vae vae --flip 0.5 --out run --quiet >/dev/null; echo "-> $?"
ls run/samples
grep -E '"(channels|image|classes)"' run/best/config.json | tr -d ' '
mhla train --source latents $tiny --out plain --quiet >/dev/null; echo "-> $?"
ls plain/samples 2>&1 | sed 's/.*: //'
mhla sample -m run --vae vae --count 2 --steps 2 --out grid.png --quiet >/dev/null; echo "-> $?"
mhla train --source latents $tiny --attention softmax --init run --vae vae --out tuned --quiet >/dev/null; echo "-> $?"
mhla sample -m run --vae other --steps 2 --out other.png --quiet >/dev/null 2>err; echo "-> $?"; sed -E 's/[0-9a-f]{12}/.../g' err
echo "# files that are left out"
mkdir -p photos/train/a photos/test/a
cp grid.png photos/train/a && cp grid.png photos/test/a && touch photos/train/a/other.webp
mhla latents photos --vae vae --out few --quiet; echo "-> $?"
echo "# refused"
mhla latents data --out x; echo "-> $?"
mhla latents --vae vae --out x; echo "-> $?"
mhla latents data --vae vae; echo "-> $?"
mhla latents data --vae vae --size 9 --out x; echo "-> $?"
mhla latents data --vae vae --size 12 --out latents; echo "-> $?"
mhla latents data --vae other --out latents; echo "-> $?"
mhla latents latents --vae vae --out x; echo "-> $?"
mhla latents data --vae run --out x; echo "-> $?"
mhla latents data --vae vae --out run; echo "-> $?"
ls x 2>/dev/null
mhla train --source latents $tiny --vae other --out y; echo "-> $?"
mhla train --source data $tiny --vae vae --out y; echo "-> $?"
mhla train --source latents $tiny --image 8 --out y; echo "-> $?"
mhla train --source latents $tiny --augment.crop pad --out y; echo "-> $?"
mhla train --source latents --model deit_nano --out y; echo "-> $?"
mhla data show latents --set model.model=dit_micro --set model.patch=1 --set model.blocks=2 --out show.png; echo "-> $?"
rm killed/train-00001.safetensors
mhla train --source killed $tiny --out y; echo "-> $?"
mv data/t10k-labels-idx1-ubyte keep && tr '\003' '\002' <keep >data/t10k-labels-idx1-ubyte
mhla train --source latents $tiny --out y 2>err; echo "-> $?"; sed 's/in .* have/in ... have/' err
mhla latents data --vae vae --out latents 2>err; echo "-> $?"; sed 's/those of .*/those of .../' err
mv data gone
mhla train --source latents $tiny --out apart --quiet >/dev/null; echo "-> $?"
