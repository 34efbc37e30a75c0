#!/bin/sh
# docs.sh: build/docs, the documentation as HTML that any browser reads offline (begin with index.html): manual pages, which must
# be well formed, the Markdown pages, the API reference out of the headers. Dead links are errors. What the pages say is checked
# by the test `docs` (check_docs.py), which needs the program.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
set -eu
cd "$(dirname "$0")/.."
out=build/docs
rm -rf "$out"
mkdir -p "$out"
for page in docs/mhla.1 docs/mhla.3; do
    mandoc -T lint -W warning "$page"
    mandoc -T html "$page" >"$out/$(basename "$page").html"
done
python3 scripts/make_docs.py "$out"
