# Images to latents and back: reconstruct, sample --vae and made again, info; in tiles; what is refused.
. "$CLI/lib.inc"
. "$CLI/dit.inc"
mkdir vae && mhla info sd_vae_nano --tensors | awk '/ [0-9x]+$/ && /weight|bias/ { gsub("x", ",", $2); print $1, $2 ($1 ~ /norm.*weight/ ? " norm" : "") }' |
    tensors vae/model.safetensors
cat >vae/config.json <<END
{"_class_name": "AutoencoderKL", "block_out_channels": [16, 32, 32], "layers_per_block": 1, "norm_num_groups": 8, "sample_size": 32,
 "latent_channels": 4, "scaling_factor": 0.18215, "act_fn": "silu"}
END
mhla info vae | sed -E 's/, [0-9.]+ MiB/, SIZE/'
mhla info vae --json | json | grep -v _bytes
base64 -d >a.png <<END
iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAGUlEQVR42mPUYIAAJgacDMZLDAwMYfjVAAA0nAFfFOStxgAAAABJRU5ErkJggg==
END
report() { sed -E 's/PSNR [0-9.]+ dB; .*/PSNR/; s/, [0-9.]+ (s|ms|us) \([^)]*\)/, TIME/; s/: [0-9.]+ MiB/: SIZE/'; }
mhla reconstruct -m vae a.png --latents z.npy 2>&1 | report; ls reconstructed.png; head -c 128 z.npy | tr -d '\0' | grep -a -o "(1, 4, 2, 2)"

echo '-- a picture of a model of latents'
small_dit latents '' 4
mhla sample -m latents --vae vae --steps 2 -c 1 -o one.png 2>&1 | report
mhla sample -m latents --vae vae --steps 2 -c 1 -o array.npy --quiet | report; tr -d '\0' <array.npy | head -c 128 | grep -a -o "(1, 3, 32, 32)"
mhla sample --like one.png -o again.png --quiet | report; cmp one.png again.png && echo 'the same file'
mhla sample -m latents --vae vae --steps 2 -c 0,1 --size 64x48 --memory 25600K -o f 2>&1 | report
mhla reconstruct -m vae f/0-T-shirt_top/000000.png --tile 32 --threads 1 2>&1 | report; cp reconstructed.png t1.png
mhla reconstruct -m vae f/0-T-shirt_top/000000.png --tile 32 --threads 3 --quiet >/dev/null; cmp t1.png reconstructed.png && echo 'the same for any number of threads'
mhla reconstruct -m vae f/0-T-shirt_top/000000.png --dtype bfloat16 --quiet --json -o half.png | json | grep -v "seconds\|psnr\|bytes"

echo '-- measured: latents give the numbers of their pictures'
. "$CLI/data.inc"
small_data data
mhla train --source data $small_model --batch 16 --steps 2 --out run --quiet >/dev/null || exit
mhla sample -m latents --steps 1 -n 5 --quiet -o latents.npy >/dev/null
mhla sample -m latents --vae vae --steps 1 -n 5 --quiet -o pictures >/dev/null
mhla measure data latents.npy --features run --vae vae --json 2>/dev/null | grep 'distance\|score\|generated' >one
mhla measure data pictures --features run --json 2>/dev/null | grep 'distance\|score\|generated' >two
diff one two && wc -l <one
mhla measure data latents.npy --features run; echo "-> $?"
mhla measure data latents.npy --features run --vae run; echo "-> $?"
mhla measure data z.npy --features run --memory 1G; echo "-> $?"

echo '-- refused'
mhla sample -m latents --steps 2 -c 1 -o x.png; echo "-> $?"
mhla sample -m latents --vae latents -c 1 -o x.png; echo "-> $?"
mhla sample -m latents --vae vae --size 30x32 -c 1 -o x.png; echo "-> $?"
mhla sample -m latents --memory 1G -c 1 -o x.png; echo "-> $?"
small_dit pixels '' 3; mhla sample -m pixels --vae vae -c 1 -o x.png; echo "-> $?"
cp -r vae other && sed -i 's/0.18215/0.2/' other/config.json && printf x | dd of=other/model.safetensors bs=1 seek=60000 conv=notrunc 2>/dev/null
mhla sample --like one.png --vae other -o x.png 2>&1 | sed -E 's/[0-9a-f]{12}/HASH/g'
mhla reconstruct -m vae a.png --memory 10K 2>&1 | sed -E 's/takes [0-9]+/takes N/'
mhla reconstruct -m vae a.png --memory 2X; echo "-> $?"
mhla reconstruct -m vae a.png --tile 7; echo "-> $?"
mhla reconstruct -m vae; echo "-> $?"
mhla reconstruct a.png; echo "-> $?"
mhla reconstruct -m vae a.png -o a.jpg; echo "-> $?"
mhla reconstruct -m latents a.png; echo "-> $?"
mhla reconstruct -m vae a.png --dtype q8_0; echo "-> $?"
sed -i 's/KL/Tiny/' vae/config.json; mhla reconstruct -m vae a.png 2>&1 | cut -c 1-120
ls x.png 2>/dev/null
