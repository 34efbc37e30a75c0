# The autoencoder of SANA: info, an image there and back, in tiles, latents of a dataset, a diffusion on them, pictures of it; trained; what
# is refused.
. "$CLI/lib.inc"
. "$CLI/data.inc"
. "$CLI/tensors.inc"
of() { awk '/ [0-9x]+$/ && /weight|bias/ { gsub("x", ",", $2); print $1, $2 ($1 ~ /norm.*weight/ ? " norm" : "") }' | tensors "$1"; }
# The published one's keys at a small size, without those that have diffusers' own values.
small="encoder_block_out_channels=8,8,16 decoder_block_out_channels=8,8,16 encoder_layers_per_block=1 decoder_layers_per_block=1 latent_channels=4"
mkdir vae && mhla info dc_ae_nano $small in_channels=1 attention_head_dim=8 sample_size=16 --tensors | of vae/diffusion_pytorch_model.safetensors
cat >vae/config.json <<END
{"_class_name": "AutoencoderDC", "_diffusers_version": "0.32.0", "in_channels": 1, "latent_channels": 4, "attention_head_dim": 8,
 "encoder_block_out_channels": [8, 8, 16], "decoder_block_out_channels": [8, 8, 16],
 "encoder_layers_per_block": [1, 1, 1], "decoder_layers_per_block": [1, 1, 1],
 "encoder_block_types": ["ResBlock", "EfficientViTBlock", "EfficientViTBlock"], "encoder_qkv_multiscales": [[], [5], [5]],
 "decoder_block_types": ["ResBlock", "EfficientViTBlock", "EfficientViTBlock"], "decoder_qkv_multiscales": [[], [5], [5]],
 "decoder_norm_types": "rms_norm", "decoder_act_fns": "silu", "upsample_block_type": "interpolate", "downsample_block_type": "Conv",
 "scaling_factor": 0.41407}
END
mhla info dc_ae | sed -E 's/, [0-9.]+ GiB/, SIZE/'
mhla info dc_ae --json | json | grep -v _bytes
mhla info vae --json | json | grep -v _bytes
base64 -d >a.png <<END
iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAGUlEQVR42mPUYIAAJgacDMZLDAwMYfjVAAA0nAFfFOStxgAAAABJRU5ErkJggg==
END
report() { sed -E 's/PSNR [0-9.]+ dB; .*/PSNR/; s/, [0-9.]+ (s|ms|us) \([^)]*\)/, TIME/; s/: [0-9.]+ [KM]iB/: SIZE/'; }
mhla reconstruct -m vae a.png --latents z.npy 2>&1 | report; head -c 128 z.npy | tr -d '\0' | grep -a -o "(1, 4, 2, 2)"

echo '-- latents of a dataset, a diffusion on them, pictures'
small_data data 80
mhla latents data --vae vae --size 16 --out latents --quiet; echo "-> $?"
mhla train --source latents --model dit_micro --patch 1 --dim 16 --depth 1 --heads 1 --blocks 2 --batch 16 --steps 6 --sample.columns 1 \
    --sample.steps 2 --vae vae --out run --quiet; echo "-> $?"; ls run/samples
mhla sample -m run --vae vae --steps 2 -c 1 --size 64x48 -o whole.png --quiet >/dev/null; echo "-> $?"
for n in 1 2 9; do
    mhla sample -m run --vae vae --steps 2 -c 1 --size 64x48 --memory 8650K --threads $n -o tiled$n.png 2>&1 | report
done
cmp tiled1.png tiled2.png && cmp tiled1.png tiled9.png && echo 'the same tiles for any number of threads'
mhla reconstruct -m vae whole.png --tile 32 --threads 1 2>&1 | report; cp reconstructed.png t1.png
mhla reconstruct -m vae whole.png --tile 32 --threads 3 --quiet >/dev/null; cmp t1.png reconstructed.png && echo 'the same for any number of threads'
mhla reconstruct -m vae whole.png --dtype bfloat16 --quiet --json -o half.png | json | grep -v "seconds\|psnr\|bytes"

echo '-- trained'
task="--task autoencoder --model dc_ae_nano --source data --sample_size 16 --encoder_block_out_channels 8,8,16 --decoder_block_out_channels 8,8,16
    --encoder_layers_per_block 1 --decoder_layers_per_block 1 --latent_channels 4 --in_channels 1 --batch 16 --steps 6 --warmup_steps 1 --sample.columns 4"
mhla train $task --checkpoint.steps 2 --out own 2>err; echo "-> $?"
grep -E '^(step|epoch) .*test' err | figures
tail -n 1 own/metrics.jsonl | json | positive 'psnr|latent_deviation|divergence'
mhla train --resume own --quiet >/dev/null; echo "resumed -> $?"
mhla train $task --upsample_block_type pixel_shuffle --downsample_block_type pixel_unshuffle --recompute true --dtype bfloat16 --out half --quiet; echo "bfloat16 -> $?"
mhla reconstruct -m own a.png --quiet | sed 's/PSNR.*//'

echo '-- refused'
mhla train $task --kl 1e-3 --out x; echo "-> $?"
mhla train $task --sample_size 18 --out x; echo "-> $?"
mhla info dc_ae_nano encoder_block_out_channels=16,32; echo "-> $?"
mhla reconstruct -m vae a.png --tile 8; echo "-> $?"
mhla reconstruct -m vae a.png --memory 10K 2>&1 | sed -E 's/takes [0-9]+/takes N/'
mhla reconstruct -m vae a.png --dtype q8_0; echo "-> $?"
change() { rm -rf bad && cp -r vae bad && sed -i "$1" bad/config.json; mhla reconstruct -m bad a.png; echo "-> $?"; }
change 's/"rms_norm"/["batch_norm", "rms_norm", "rms_norm"]/'
change 's/"decoder_layers_per_block": .1/"decoder_layers_per_block": [2/'
change 's/"latent_channels": 4/"latent_channels": 8/'
change 's/AutoencoderDC/AutoencoderKL/'
. "$CLI/vae.inc"
small_vae other && cp vae/config.json other && mhla reconstruct -m other a.png; echo "-> $?"
ls x 2>/dev/null
