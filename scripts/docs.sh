#!/bin/sh
# docs.sh: the manual pages are well formed (and lie in build/docs as HTML), and no relative link in a Markdown file is dead.
set -eu
cd "$(dirname "$0")/.."
mkdir -p build/docs
for page in docs/mhla.1 docs/mhla.3; do
    mandoc -T lint -W warning "$page"
    mandoc -T html "$page" >"build/docs/$(basename "$page").html"
done
python3 - <<'END'
import pathlib, re, subprocess, sys
dead = 0
pages = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], capture_output=True, text=True, check=True).stdout.split()
for page in map(pathlib.Path, pages):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target and not (page.parent / target).exists():
            print(f"{page}: dead link {target}")
            dead += 1
print(f"docs: {len(pages)} pages, {dead} dead links; manual pages in build/docs")
sys.exit(dead > 0)
END
