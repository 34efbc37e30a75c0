#!/bin/sh
# venv.sh: .venv with the one torch that the tests are written for, and the package built from this tree as a user's pip
# builds it (again only when something it is built from has changed).
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
set -eu
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1
[ -x .venv/bin/python ] || { echo "making .venv"; python3 -m venv .venv; }
.venv/bin/python -m pip install -q torch==2.13.0 numpy pytest safetensors
# for examples/timm_vit.py; without their dependencies, so that no other torch comes along
ls .venv/lib/*/site-packages/timm >/dev/null 2>&1 ||
    { .venv/bin/python -m pip install -q --no-deps timm torchvision==0.28.0 && .venv/bin/python -m pip install -q pyyaml huggingface_hub pillow; } ||
    echo "timm is not to be had here: its example will not be tested"
# for examples/sana_diffusers.py, likewise
ls .venv/lib/*/site-packages/diffusers >/dev/null 2>&1 ||
    { .venv/bin/python -m pip install -q --no-deps diffusers && .venv/bin/python -m pip install -q regex requests importlib_metadata huggingface_hub pillow; } ||
    echo "diffusers is not to be had here: its example will not be tested"
# for the tests beside transformers and of the type hints; without typer, which transformers' command line alone needs
ls .venv/lib/*/site-packages/transformers >/dev/null 2>&1 ||
    .venv/bin/python -m pip install -q --no-deps transformers tokenizers regex ||
    echo "transformers is not to be had here: the test beside it will be skipped"
ls .venv/lib/*/site-packages/mypy >/dev/null 2>&1 || .venv/bin/python -m pip install -q mypy ||
    echo "mypy is not to be had here: type hints will not be tested"
if [ ! -e .venv/installed ] || [ -n "$(find CMakeLists.txt pyproject.toml cmake include src python -newer .venv/installed -type f ! -name '*.pyc' ! -path '*/tests/*' -print -quit)" ]; then
    echo "pip install ."
    touch .venv/started
    .venv/bin/python -m pip install -q .
    mv .venv/started .venv/installed
fi
