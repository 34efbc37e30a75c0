#!/usr/bin/env python3
"""make_docs.py [OUT]: the pages of this repository as static HTML that any browser reads offline; default build/docs.

Markdown pages, the API reference out of the headers, the manual pages (docs.sh has made them there before), an index. A link to a
file of the sources leads to a page that shows the file. At the end every link of every page is followed; one that leads nowhere is
an error.
"""
import argparse
import html
import pathlib
import re
import shutil
import sys
from urllib.parse import unquote

import api_reference
import pages

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = ["mhla.h", "nn.h", "lm.h", "diffusion.h", "analysis.h", "lab.h", "page.h"]

# The order in which they are read: (title of a group, [(page, what it is for)])
GROUPS = [
    ("Begin", [("README.md", "what it is, how fast, first commands"),
               ("docs/guide.md", "install, train, evaluate, classify, generate, sample, measure, analyze, recipes"),
               ("docs/tutorial.md", "from linear attention to MHLA, for those who have not read the paper"),
               ("examples/README.md", "short programs in C and Python")]),
    ("Look up", [("docs/models.md", "every model and what it needs"),
                 ("docs/performance.md", "figures and the commands that measure them"),
                 ("docs/clusters.md", "several processes and machines"),
                 ("docs/data.md", "datasets, formats, text"),
                 ("docs/tokenizers.md", "tokenizer files that are read"),
                 ("docs/evaluation.md", "how figures of quality come about"),
                 ("docs/mqar.md", "an experiment on recall"),
                 ("python/README.md", "the Python package")]),
    ("Work on it", [("docs/architecture.md", "how the code is laid out"),
                    ("docs/adding-a-model.md", "a classifier and a mixer, step by step"), ("CONTRIBUTING.md", "building, testing, where to add what"),
                    ("bench/README.md", "how speed is measured"), ("CHANGELOG.md", "what has changed")]),
]

STYLE = """
:root { --ink: #1c2126; --paper: #fff; --soft: #f4f5f7; --line: #d9dde2; --link: #0b5cad; --note: #59636e; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe3e8; --paper: #15181c; --soft: #20252b; --line: #363d46; --link: #7db7ee; --note: #98a2ad; }
  figure img { background: #fff; } }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: var(--paper); font: 16px/1.55 system-ui, "DejaVu Sans", sans-serif; }
nav { border-bottom: 1px solid var(--line); padding: .6rem 1.2rem; font-size: .88rem; }
nav b { display: inline-block; margin: 0 .4rem 0 1rem; color: var(--note); font-weight: 600; } nav a { margin-right: .7rem; white-space: nowrap; }
nav a.home { font-weight: 700; } nav a[aria-current] { color: var(--ink); text-decoration: none; font-weight: 600; }
main { max-width: 60rem; padding: 1.2rem; margin: 0 auto 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; } h2 { margin-top: 2.4rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; } h3 { margin-top: 1.8rem; }
a { color: var(--link); } a.anchor { visibility: hidden; margin-left: .4em; text-decoration: none; font-weight: 400; }
h1:hover .anchor, h2:hover .anchor, h3:hover .anchor, a.anchor:focus { visibility: visible; }
code, pre { font: .86em/1.5 ui-monospace, "DejaVu Sans Mono", monospace; } p code, li code, td code { background: var(--soft); padding: .08em .25em; border-radius: 3px; }
pre { background: var(--soft); padding: .7rem .9rem; overflow-x: auto; border-radius: 5px; } pre code { font-size: inherit; }
pre { font-size: .8rem; } p, li, dd { max-width: 50rem; } .wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { border: 1px solid var(--line); padding: .3rem .55rem; text-align: left; vertical-align: top; } th { background: var(--soft); }
td.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
figure { margin: 1.2rem 0; overflow-x: auto; } img { max-width: 100%; height: auto; } :is(figure, td) img[src$=".svg"] { min-width: 34rem; } blockquote { border-left: 3px solid var(--line); margin-left: 0; padding-left: 1rem; color: var(--note); }
.note { color: var(--note); font-size: .9rem; } .api { border-top: 1px solid var(--line); } .api h3 { font-family: ui-monospace, monospace; font-size: 1rem; margin: 1rem 0 .3rem; overflow-wrap: anywhere; }
dl dt { font-weight: 600; margin-top: .5rem; } dl dd { margin-left: 0; color: var(--note); } .names { columns: 16rem; font-size: .85rem; padding-left: 1rem; }
@media (min-width: 76rem) { nav { position: fixed; top: 0; bottom: 0; width: 15rem; overflow-y: auto; border-right: 1px solid var(--line); border-bottom: 0; }
  nav b { display: block; margin: 1rem 0 .2rem; } nav a { display: block; margin: .1rem 0; } nav a { white-space: normal; } main { margin-left: max(16rem, calc(50vw - 28rem)); } }
@media print { nav, a.anchor { display: none; } main { max-width: none; } pre { white-space: pre-wrap; } table { font-size: .62rem; } th, td { padding: .15rem .3rem; }
  .wide, figure { overflow: visible; } figure, tr { break-inside: avoid; } figure img { max-height: 9cm; } :is(figure, td) img[src$=".svg"] { min-width: 0; } }
"""


class Site:
    def __init__(self, out: pathlib.Path):
        self.out, self.written, self.sources = out, {}, {}
        results = sorted((ROOT / "docs" / "results").glob("*.md"), key=lambda p: p.stem)
        maths = sorted((ROOT / "src" / "ops").glob("*/README.md"))
        self.groups = [(title, [(p, why) for p, why in rows if (ROOT / p).exists()]) for title, rows in GROUPS]
        if results:
            self.groups.insert(2, ("Results", [(str(p.relative_to(ROOT)), "") for p in results]))
        self.maths = [str(p.relative_to(ROOT)) for p in maths]
        self.titles, self.blocks = {}, {}
        for path in [p for _, rows in self.groups for p, _ in rows] + self.maths:
            self.blocks[path] = pages.parse((ROOT / path).read_text())
            first = next((b.text for b in self.blocks[path] if b.kind == "heading"), path)
            self.titles[path] = {"README.md": "Read me first"}.get(path, re.sub(r"`", "", first))
            if (form := self.result(path).partition(", ")[2]):
                self.titles[path] += f", {form}"
        self.headers = [h for h in HEADERS if (ROOT / "include" / "mhla" / h).exists()]
        self.manuals = sorted(p.name for p in out.glob("mhla.[13].html"))

    @staticmethod
    def result(path: str) -> str:
        """The short name of a page of results, "deit, quick"; "" of other pages."""
        found = re.fullmatch(r"docs/results/([a-z-]+)\.md", path)
        return found[1].replace("-", ", ") if found else ""

    def name(self, path: str) -> str:
        """The file that a page of the repository becomes."""
        if path.startswith("include/mhla/"):
            return "api-" + path.split("/")[-1] + ".html"
        path = path.removeprefix("docs/").removesuffix(".md")
        return re.sub(r"[^\w.]+", "-", path.replace("/README", "").replace("README", "readme").lower()) + ".html"

    def target(self, page: str):
        """Turns the links of a page into those of the site."""
        def turn(address: str) -> str:
            if re.match(r"[a-z]+:", address) or address.startswith("#"):
                return address
            path, _, anchor = address.partition("#")
            full = ((ROOT / page).parent / path).resolve()
            inside = str(full.relative_to(ROOT)) if full.is_relative_to(ROOT) else ""
            anchor = f"#{anchor}" if anchor else ""
            if inside in self.blocks or re.fullmatch(r"include/mhla/\w+\.h", inside):
                return self.name(inside) + anchor
            if inside.startswith("docs/") and full.name + ".html" in self.manuals:
                return inside.split("/")[1] + ".html"
            if full.suffix.lower() in (".svg", ".png", ".jpg") and full.exists():
                (self.out / "images").mkdir(exist_ok=True)
                name = inside.removeprefix("docs/").replace("/", "-")
                shutil.copyfile(full, self.out / "images" / name)
                return "images/" + name
            if full.is_file() and full.suffix != ".html":
                self.sources["source-" + inside.replace("/", "-") + ".html"] = inside
                return "source-" + inside.replace("/", "-") + ".html"
            return address  # the check at the end tells
        return turn

    def nav(self, here: str) -> str:
        def item(file: str, text: str) -> str:
            return f'<a href="{file}"{" aria-current=page" if file == here else ""}>{html.escape(text)}</a>'
        rows = ['<a class="home" href="index.html">mhla</a>']
        for title, found in self.groups:
            rows.append(f"<b>{title}</b>" + "\n".join(item(self.name(p), self.result(p) or self.titles[p]) for p, _ in found))
        rows.append("<b>API</b>" + "\n".join([item("api.html", "All names")] + [item(f"api-{h}.html", h) for h in self.headers]))
        return "<nav>" + "\n".join(rows) + "</nav>"

    def write(self, file: str, title: str, body: str) -> None:
        page = (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">\n'
                f"<title>{html.escape(title)} - mhla</title><style>{STYLE}</style></head>\n<body>{self.nav(file)}\n<main>\n{body}\n</main></body></html>\n")
        (self.out / file).write_text(page)
        self.written[file] = page

    def index(self) -> None:
        body = ["<h1>mhla</h1><p>Multi-Head Linear Attention on CPUs: a C library, a program and a Python package.</p>"]
        for title, rows in self.groups:
            body.append(f"<h2>{title}</h2><dl>" + "".join(
                f'<dt><a href="{self.name(p)}">{html.escape(self.titles[p])}</a></dt><dd>{html.escape(why)}</dd>' for p, why in rows) + "</dl>")
        body.append("<h2>Reference</h2><dl>" + "".join(
            f'<dt><a href="api-{h}.html">&lt;mhla/{h}&gt;</a></dt><dd>{html.escape(self.about[h])}</dd>' for h in self.headers))
        body.append('<dt><a href="api.html">All names</a></dt><dd>functions, types and constants by the alphabet</dd>')
        body += [f'<dt><a href="{m}">{m.removesuffix(".html")}</a></dt><dd>manual page</dd>' for m in self.manuals]
        body.append("</dl><h2>Mathematics of the operators</h2><ul>" + "".join(
            f'<li><a href="{self.name(p)}">{html.escape(self.titles[p])}</a></li>' for p in self.maths) + "</ul>")
        self.write("index.html", "Documentation", "\n".join(body))

    def make(self) -> None:
        texts = {h: (ROOT / "include" / "mhla" / h).read_text() for h in self.headers}
        self.about = {h: re.match(r"/\* \S+ - (.*)", t)[1].split(". ")[0].rstrip(".:") for h, t in texts.items()}
        where = {n: f"api-{h}.html" for h in reversed(self.headers) for n in api_reference.all_names(texts[h])}
        for path, blocks in self.blocks.items():
            self.write(self.name(path), self.titles[path], pages.render(blocks, self.target(path)))
        for h, text in texts.items():
            self.write(f"api-{h}.html", f"<mhla/{h}>", f"<h1>&lt;mhla/{h}&gt;</h1>" + api_reference.page(text, f"api-{h}.html", where))
        names = "".join(f'<li><a href="{p}#{n}">{n}</a></li>' for n, p in sorted(where.items(), key=lambda x: x[0].lower()))
        self.write("api.html", "All names", f'<h1>All names</h1><ul class="names">{names}</ul>')
        for file, inside in sorted(self.sources.items()):
            text = html.escape((ROOT / inside).read_text())
            self.write(file, inside, f"<h1>{html.escape(inside)}</h1><pre><code>{text}</code></pre>")
        self.index()

    def dead(self) -> list:
        """Links of the pages that lead nowhere."""
        found, ids = [], {}
        for file in self.out.glob("*.html"):
            ids[file.name] = set(re.findall(r'\bid="([^"]+)"', file.read_text()))
        for file, text in self.written.items():
            for address in re.findall(r'(?:href|src)="([^"]*)"', text):
                address = unquote(html.unescape(address))
                if re.match(r"[a-z]+:", address):
                    continue
                path, _, anchor = address.partition("#")
                if path and not (self.out / path).is_file():
                    found.append(f"{file}: {address} leads nowhere")
                elif anchor and anchor not in ids.get(path or file, set()):
                    found.append(f"{file}: {address} has no such anchor")
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=pathlib.Path, default=ROOT / "build" / "docs", metavar="OUT", help="the folder to write")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    site = Site(out)
    site.make()
    dead = site.dead()
    for line in dead:
        print(line)
    print(f"docs: {len(site.written)} pages in {out}, {len(dead)} dead links; begin with {out}/index.html")
    return len(dead) > 0


if __name__ == "__main__":
    sys.exit(main())
