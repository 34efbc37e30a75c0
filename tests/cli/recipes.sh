# Every recipe is understood: the only thing that is missing is its data.
for recipe in "$CLI"/../../recipes/*.toml; do
    mhla train "$recipe" --source no/such/data --out run; echo "$(basename "$recipe") -> $?"
    if [ -e run ]; then echo 'something was left behind'; fi
done
