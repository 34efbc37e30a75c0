# Parameters and multiply-adds of the published models.
for model in deit_tiny deit_small deit_base; do
    mhla info $model structure=released
done
mhla info deit_small structure=released attention=softmax
mhla info deit_small structure=released attention=linear --json
mhla info deit_nano classes=10 channels=1 depth=1 --tensors
# The attentions that MHLA is compared with: 256 tokens, 196 tokens with CPE; flags as train has them.
for attention in focused inline mala rala; do
    mhla info deit_tiny --attention $attention
    mhla info deit_tiny --attention=$attention padding=0 --cpe 3
    mhla info deit_nano attention=$attention depth=1 classes=10 --tensors
done
mhla info deit_nano attention=mala heads=32
mhla info deit_nano --attention
mhla info dit_nano attention=rala
# Language models: the released configuration, and what a small one of each attention is made of.
mhla info lm_340m num_hidden_layers=2
mhla info lm_340m attention=softmax num_hidden_layers=1 --json
mhla info lm_micro attn_layers=1 --tensors
mhla info lm_micro num_hidden_layers=3 attn_layers=2 linear_layers=1 linear_feature_map=relu --tensors
mhla info lm_micro num_heads=3
mhla info lm_micro attention=sofmax
mhla info lm_micro attention=softmax linear_layers=1
mhla info lm_milli
# The models that MHLA is compared with, in the paper's size.
for attention in gla retnet mamba mamba2 gated_deltanet; do
    mhla info lm_340m attention=$attention
done
mhla info lm_480m
mhla info lm_480m attention=mhla; echo "-> $?"
mhla info lm_micro attention=mamba2 num_heads=3; echo "-> $?"
mhla info lm_micro attention=mamba2 n_groups=3; echo "-> $?"
mhla info lm_micro num_hidden_layers=3 attention=gla mamba2_layers=1 gated_deltanet_layers=2 --tensors
# Diffusion models: published sizes, MHLA's and facebookresearch's, small ones, and settings that cannot be.
mhla info dit_s_2 structure=released
mhla info dit_s_2 structure=released attention=softmax --json
mhla info dit_micro depth=1 gate=true cpe=folded --tensors
mhla info dit_micro process=flow learn_sigma=true
mhla info dit_micro image=32,36 cpe=folded
mhla info dit_micro patch=3
echo "-> $?"
echo '--- presets'
mhla info --presets | sed -n '1p;$p'
mhla info --presets --json | grep -c '"'
mhla info --presets lm_nano; echo "-> $?"
