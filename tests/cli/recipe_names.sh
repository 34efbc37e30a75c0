# A recipe by its name: a file as typed, then recipes/ in the current folder, then the recipes installed beside the program. Each
# recipe here lacks its data, so that the message shows which one was read.
mkdir -p recipes plain
printf 'data.source = "no/such/data-of-here"\n' >recipes/mine.toml
printf '{"data": {"source": "no/such/data-of-json"}}\n' >recipes/other.json
printf 'data.source = "no/such/data-as-typed"\n' >typed
mhla train mine --out run; echo "-> $?"
mhla train mine.toml --out run; echo "-> $?"
mhla train other --out run; echo "-> $?"
cp typed mine && mhla train mine --out run; echo "a file as typed -> $?"
rm mine && mkdir mine && mhla train mine --out run; echo "a folder of that name -> $?"
mhla train recipes/mine --out run; echo "a path is not completed -> $?"
mhla data show -r mine -o x.png; echo "-> $?"

echo "# none of that name"
mhla train nine --out run 2>err; echo "-> $?"
sed 's| or in /.*/share| or in PREFIX/share|' err
mhla data show -r nine -o x.png 2>err; echo "-> $?"
sed 's| or in /.*/share| or in PREFIX/share|' err
cd plain
mhla train nine --out run 2>&1 | sed 's| or in /.*/share| or in PREFIX/share|'
cd ..

echo "# installed"
mkdir -p prefix/bin prefix/share/mhla/recipes
cp "$(command -v mhla)" prefix/bin/mhla
printf 'data.source = "no/such/data-installed"\n' >prefix/share/mhla/recipes/mine.toml
cp prefix/share/mhla/recipes/mine.toml prefix/share/mhla/recipes/theirs.toml
ln -s "$PWD/prefix/bin/mhla" linked
prefix/bin/mhla train theirs --out run; echo "-> $?"
./linked train theirs --out run; echo "through a link -> $?"
prefix/bin/mhla train mine --out run; echo "the current folder comes first -> $?"
prefix/bin/mhla train nine --out run 2>&1 | sed "s|$PWD/||"
[ ! -e run ] || echo 'something was left behind'
