# An autoencoder of our own, from images to samples: trained, stopped and resumed, used by reconstruct, latents, sample and measure; DiT
# and DiG on its latents.
. "$CLI/lib.inc"
. "$CLI/data.inc"
. "$CLI/vae.inc"
small_data data 80
recipes=$CLI/../../recipes
small="--source data --sample_size 8 --norm_num_groups 4 --block_out_channels 8,8,8 --latent_channels 2 --batch 16 --steps 6 --warmup_steps 1 --eval.steps 3
    --sample.columns 4 --sample.rows 2"
mhla train $recipes/vae-emoji.toml $small --checkpoint.steps 2 --out run 2>err; echo "-> $?"
grep -E '^(step|epoch) .*test' err | figures
sed -n 's/^\(kl_f4\).*/\1/p' err
ls run run/samples
grep -E '"(_class_name|in_channels|latent_channels)"' run/best/config.json | tr -d ' '
tail -n 1 run/metrics.jsonl | json | positive 'psnr|latent_deviation|divergence'
grep -c '<h2>Reconstructions</h2>' run/report.html
mhla info run --tensors | grep -c -E '^ *(encoder|decoder|quant_conv|post_quant_conv)'
# the scale is 1 / deviation of the test images' latents
json <run/best/config.json | awk -v d="$(grep '"test"' run/metrics.jsonl | grep "\"step\":$(readlink run/best | sed 's/.*-0*//')," | json | awk '$1 == "latent_deviation" { print $2 }')" \
    -v w="$(grep -c ema run/best/state.json)" '$1 == "scaling_factor" { r = $2 * d; print (r > 0.9 && r < 1.1 ? "scaled" : r) }'
mhla train $recipes/vae-emoji.toml $small --recompute true --dtype bfloat16 --threads 2 --out half --quiet; echo "bfloat16 -> $?"
mhla train $recipes/vae-emoji.toml $small --model kl_f8 --norm_num_groups 4 --block_out_channels 8,8,8,8 --init run --steps 2 --out f8 2>&1 >/dev/null | grep -E '^weights' | figures

echo '# used'
mhla latents data --vae run --out latents --quiet; echo "latents -> $?"
base64 -d >a.png <<END
iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAGUlEQVR42mPUYIAAJgacDMZLDAwMYfjVAAA0nAFfFOStxgAAAABJRU5ErkJggg==
END
mhla reconstruct -m run a.png --quiet | sed 's/PSNR.*//'; echo "reconstruct -> $?"
for kind in dit dig; do
    mhla train $recipes/$kind-emoji-latents.toml --attention mhla --source latents --vae run --patch 1 --dim 16 --depth 2 --heads 2 --blocks 2 --batch 16 --steps 4 \
        --warmup_steps 1 --sample.columns 1 --sample.steps 2 --out $kind --quiet; echo "$kind -> $?"
    ls $kind/samples
    mhla sample -m $kind --vae run --classes all --steps 2 --out $kind.png --quiet | sed 's/, .*//'
done
small_clips clips # frame by frame
mhla latents clips --vae run --out clip-latents; echo "latents of clips -> $?"
mhla train $recipes/wan-moving.toml --source clip-latents --vae run --patch 1 --dim 24 --ffn 32 --depth 2 --heads 2 --blocks 3,2,2 --batch 8 --steps 4 \
    --warmup_steps 1 --sample.columns 1 --sample.steps 2 --out wan --quiet; echo "wan -> $?"
mhla info wan --no-measure | grep input
mhla sample -m wan --vae run --classes all --steps 2 --out wan.png --quiet | sed 's/, .*//'
mhla sample -m wan --vae run --classes all --steps 2 --out wan.npy --quiet | sed 's/, .*//'; dd if=wan.npy bs=1 skip=10 count=80 2>/dev/null; echo
for file in wan/samples/step-00000004.png wan.png; do
    python3 -c 'import struct, sys; b = open(sys.argv[1], "rb").read(); print(struct.unpack(">II", b[16:24]), b.count(b"fcTL"), "frames")' $file
done
mhla sample --like wan.png --out again.png --quiet | tail -n 1
mhla train $recipes/dit-emoji-latents.toml --source clip-latents --vae run --blocks 1 --out a --quiet; echo "-> $?"
mhla sample -m dit -n 3 --steps 2 --quiet -o latents.npy >/dev/null
mhla train --source data $small_model --batch 16 --steps 2 --out judge --quiet >/dev/null
mhla measure data latents.npy --features judge --vae run --json 2>/dev/null | json | positive 'frechet_distance'
mhla data show -r $recipes/vae-emoji.toml --set data.source=data --set model.sample_size=8 -o show.png -n 4 >/dev/null; echo "show -> $?"

echo '# refused'
refuse() { mhla train --task autoencoder --model kl_f4 --source data "$@" --out x; echo "-> $?"; }
refuse --kl -0.1
refuse --in_channels 3
refuse --sample_size 30
refuse --block_out_channels 8,12 --norm_num_groups 8
refuse --model dit_nano
refuse --model no_model
refuse --source latents
refuse --source run
refuse --init dit --sample_size 8 2>&1 | head -n 2
mhla train --task denoiser --source data --out x; echo "-> $?"
mhla train --source latents --model dit_micro --patch 1 --vae half --out x 2>err; echo "-> $?"; sed 's/SHA-256 .*/SHA-256 .../' err
ls x 2>/dev/null
