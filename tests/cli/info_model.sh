# Parameters and multiply-adds of the published models.
for model in deit_tiny deit_small deit_base; do
    mhla info $model structure=released
done
mhla info deit_small structure=released attention=softmax
mhla info deit_small structure=released attention=linear --json
mhla info deit_nano classes=10 channels=1 depth=1 --tensors
