# Clips to latents and back: an autoencoder of clips, a text encoder; in tiles; what is refused.
. "$CLI/lib.inc"
. "$CLI/tensors.inc"
of() { awk '/ [0-9x]+$/ && /weight|bias|gamma/ { gsub("x", ",", $2); print $1, $2 ($1 ~ /norm.*(weight|gamma)/ ? " norm" : "") }' | tensors "$1"; }
mkdir vae && mhla info wan_vae_nano --tensors | of vae/diffusion_pytorch_model.safetensors
cat >vae/config.json <<END
{"_class_name": "AutoencoderKLWan", "base_dim": 8, "num_res_blocks": 1, "dim_mult": [1, 2, 4, 4], "z_dim": 16, "sample_size": 32,
 "temperal_downsample": [false, true, true], "attn_scales": []}
END
mhla info vae | sed -E 's/, [0-9.]+ MiB/, SIZE/'
mhla info vae --json | json | grep -v _bytes
base64 -d >a.png <<END
iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAGUlEQVR42mPUYIAAJgacDMZLDAwMYfjVAAA0nAFfFOStxgAAAABJRU5ErkJggg==
END
report() { sed -E 's/PSNR [0-9.]+ dB; .*/PSNR/; s/: [0-9.]+ MiB/: SIZE/'; }
mhla reconstruct -m vae a.png --latents z.npy 2>&1 | report; head -c 128 z.npy | tr -d '\0' | grep -a -o "(1, 16, 1, 1)"
mkdir frames && for i in 1 2 3 4 5; do cp a.png frames/$i.png; done
mhla reconstruct -m vae frames --latents z.npy -o clip.png 2>&1 | report; head -c 128 z.npy | tr -d '\0' | grep -a -o "(16, 2, 1, 1)"
grep -a -c acTL clip.png
mhla reconstruct -m vae frames --json --quiet | json | grep -v "seconds\|psnr\|bytes"
mhla reconstruct -m vae frames --threads 1 --quiet -o t1.png >/dev/null; mhla reconstruct -m vae frames --threads 3 --quiet -o t3.png >/dev/null
cmp t1.png t3.png && echo 'the same for any number of threads'

echo '-- a text encoder'
mkdir text && mhla info umt5_nano --tensors | of text/model.safetensors
echo '{"model_type": "umt5", "d_model": 64, "d_kv": 16, "d_ff": 160, "num_heads": 4, "num_layers": 2, "vocab_size": 384}' >text/config.json
mhla info text
mhla info text --json | json

echo '-- refused'
cp a.png frames/6.png; mhla reconstruct -m vae frames; echo "-> $?"
rm frames/[2-6].png; mkdir empty; mhla reconstruct -m vae empty; echo "-> $?"
mhla reconstruct -m vae nowhere; echo "-> $?"
mhla reconstruct -m text a.png; echo "-> $?"
mhla reconstruct -m vae a.png --memory 10K 2>&1 | sed -E 's/takes [0-9]+/takes N/'
