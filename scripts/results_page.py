#!/usr/bin/env python3
"""results_page.py [--check]: writes docs/results/README.md, the front page of the results, and the figures of results in README.md and docs/guide.md.

Every figure and verdict is read from a page that `mhla reproduce` wrote. An experiment without a page is listed as missing. With --check
nothing is written, and the exit code is 1 if a page is not up to date.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "results"

# What is claimed, the experiment, its figure, and what the page says in figures: {arm | column} is a cell of its table.
CLAIMS = [
    ("Linear attention falls behind as sequences get longer, MHLA does not.", "length", 1,
     "At 1,024 tokens MHLA classifies {MHLA | at 1,024} % correctly, linear {linear | at 1,024} %, softmax {softmax | at 1,024} %; MHLA with uniform initial mixing "
     "{MHLA, uniform start | at 1,024} %."),
    ("MHLA's time grows with the tokens, softmax's with their square.", "scaling", 1,
     "One layer at 16,384 tokens: MHLA with 64 blocks {MHLA, M = 64 | at 16,384} ms, linear {linear | at 16,384} ms, softmax {softmax | at 16,384} ms."),
    ("MHLA's attention has a higher rank and a lower entropy than that of other linear attentions.", "collapse", 1,
     "Rank: MHLA {MHLA | rank}, linear {linear | rank}, softmax {softmax | rank}. Entropy: MHLA {MHLA | entropy, nats}, linear "
     "{linear | entropy, nats}, Focused LA {Focused LA | entropy, nats}, RALA {RALA | entropy, nats} nats."),
    ("As a language model MHLA is better than linear attention and close to softmax.", "language", 1,
     "Bits per byte at 512 tokens: MHLA {MHLA, 512 tokens; MHLA, text | bits per byte}, linear {linear, 512 tokens; linear, text | bits per byte}, "
     "softmax {softmax, 512 tokens; softmax, text | bits per byte}."),
    ("As a language model MHLA is better than GLA; softmax, Mamba2 and Gated DeltaNet are better than MHLA.", "mixers", 1,
     "Bits per byte: MHLA {MHLA | bits per byte}, linear {linear | bits per byte}, softmax {softmax (Transformer++) | bits per byte}, "
     "GLA {GLA | bits per byte}, RetNet {RetNet | bits per byte}, Mamba {Mamba | bits per byte}, Mamba2 {Mamba2 | bits per byte}, "
     "Gated DeltaNet {Gated DeltaNet | bits per byte}. Recall of 64 pairs: MHLA {MHLA | 64 pairs} %, linear {linear | 64 pairs} %, "
     "softmax {softmax (Transformer++) | 64 pairs} %, Mamba2 {Mamba2 | 64 pairs} %, Gated DeltaNet {Gated DeltaNet | 64 pairs} %."),
    ("In a video model MHLA can replace softmax attention, and linear attention cannot.", "video", 2,
     "Test loss from scratch: softmax {softmax | test loss}, MHLA {MHLA | test loss}, linear {linear | test loss}, hybrid {hybrid | test loss}; started "
     "from the trained softmax model: softmax {softmax, trained on | test loss}, MHLA {softmax to MHLA | test loss}, linear {softmax to linear | test loss}, "
     "hybrid {softmax to hybrid | test loss}."),
    ("MHLA classifies images better than the other attentions.", "deit", 1,
     "Accuracy: MHLA {MHLA | accuracy, %} %, linear {linear | accuracy, %} %, softmax {softmax | accuracy, %} %, MALA {MALA | accuracy, %} %."),
    ("MHLA classifies colour images better than the other attentions.", "deit-cifar", 1,
     "Accuracy: MHLA {MHLA | accuracy, %} %, linear {linear | accuracy, %} %, softmax {softmax | accuracy, %} %, MALA {MALA | accuracy, %} %."),
    ("In the backbone VLT MHLA classifies better than MALA and RALA.", "vlt", 1,
     "Accuracy: MHLA {MHLA | accuracy, %} %, linear {linear | accuracy, %} %, MALA {MALA | accuracy, %} %, RALA {RALA | accuracy, %} %."),
    ("A mixing matrix that is initialized by distance and learned is best.", "mixing", 1,
     "Accuracy: distances, learned {distances, learned | accuracy, %} %; frozen {distances, frozen | accuracy, %} %; uniform, learned "
     "{uniform, learned | accuracy, %} %."),
    ("More blocks are better than one.", "heads", 1,
     "Accuracy: M = 1 {M = 1 | accuracy, %} %, M = 4 {M = 4 (2 x 2) | accuracy, %} %, M = 16 {M = 16 (4 x 4) | accuracy, %} %."),
    ("A convolution over the tokens (CPE) and an output gate each improve image generation.", "modules", 1,
     "Test loss: neither {neither | test loss}, CPE {CPE | test loss}, gate {gate | test loss}, both {CPE and gate | test loss}."),
]

# Tables and figures of the paper: what is in them, the experiments that test it (none: why, and how someone else can).
PAPER = [
    ("Fig. 1b", "throughput against resolution", ["scaling"], ""),
    ("Fig. 3", "rank and entropy of trained attention", ["collapse", "length"], ""),
    ("Fig. 4b", "the learned mixing matrix", [],
     "A figure without a claim to test: `mhla analyze -m RUN --out analysis` draws it for any run."),
    ("Tab. 2a", "DeiT with seven attentions, ImageNet-1K", ["deit", "deit-cifar"], ""),
    ("Tab. 2b", "VLT against other backbones, ImageNet-1K", ["vlt"],
     "300 epochs of ImageNet are out of reach of two cores; on a larger machine: `mhla train recipes/vlt-paper.toml`. The paper's top-1: MHLA-VLT-T 82.6, MAViT-T 82.4, RAVLT-T 82.3; MHLA-VLT-S 84.6, MAViT-S 84.3. "
     "The rows of PVT, NAT, FAT and VMamba are quoted in the paper from other work; these models are not in this project."),
    ("Tab. 3, 9, 10", "DiT on ImageNet latents, FID at 256 and 512 px", [],
     "Out of reach: 400,000 updates at batch 256. A small version: `mhla train recipes/dit-fashion.toml`; `mhla measure` computes FID."),
    ("Tab. 4", "SANA with MHLA: FID, CLIP score, GenEval", [],
     "Out of reach: 40,000 updates of a model of 0.6B parameters. GenEval needs an object detector, which is not in this project. The paper's figures for SANA without and with MHLA: FID 6.10 and 5.90, "
     "CLIP score 28.15 and 28.26, GenEval 0.64 and 0.68."),
    ("Tab. 5, Fig. 6", "Wan2.1 adapted to MHLA: loss and time", ["video"], "The paper's figures are not available to this project."),
    ("Video", "Wan with MHLA: VBench", [],
     "Out of reach: VBench needs many videos of a large model, and scoring models that are not in this project. The paper's figures are not available to this project."),
    ("Tab. 6", "language models of 340M parameters", ["language", "mixers"], "The same size on a larger machine: `mhla train recipes/lm-340m.toml`."),
    ("Tab. 7a", "initial mixing matrix, learned or frozen", ["mixing"], ""),
    ("Tab. 7b", "the number of blocks", ["heads"], ""),
    ("Tab. 8", "long documents (LongBench), 325M parameters", [],
     "Out of reach: it needs the models of Tab. 6. The paper's averages, 6.5 to 7.4 for all models, are near the floor."),
    ("Tab. 11", "DiT against LiT, three runs", [],
     "Out of reach, as Tab. 3. The paper's FID of MHLA and LiT: S/2 59.744 and 63.21, B/2 37.519 and 40.86, L/2 21.426 and 24.04, XL/2 19.164 and 20.66. The row of LiT is "
     "not LiT's best result."),
    ("Tab. 12", "CPE and gate, DiT-S/2", ["modules"], ""),
    ("Tab. 13", "DeiT-T at 384 and 512 px", ["length"],
     "Tested only as a question of length. The paper's experiment on a larger machine: `mhla train recipes/deit-paper.toml`."),
    ("Tab. 14", "time by number of blocks", ["scaling"], ""),
]

HOW = """## How to read a page

* An *arm* is one of the compared variants, trained once for each seed. A *claim* says which of two arms is higher in a measure, or that an arm
  is above or below a number.
* ± in a table, and the bar in a figure, is the standard deviation between seeds (with n - 1), not the error of the mean; with one seed the bar
  is the error of the test set. A dot is a seed, the upright line the mean. The axis of such a figure does not begin at 0.
* The *error of the test set* is the standard error that comes from the finite number n of test images. For a share p it is √(p(1-p)/n), about
  0.35 % for 86 % of 10,000. For rank and entropy it is the deviation between images divided by √n. For loss and bits per byte it is not known.
* "t -2.81 at 2.3 degrees of freedom, p 0.092 (needs 0.025)": the difference is 2.81 times its standard error. If the
  two arms were equal, a difference as large as this would occur in 9.2 % of all repetitions; to be significant, p must be below 2.5 %. Holm's
  method sets this limit: the smallest p of k claims needs 0.05/k, the next 0.05/(k-1) and so on. The first claim that fails ends the list, and
  the rest is undecided. The probability that any claim of an experiment is decided by chance is then at most 5 %.
* *Detectable* is the smallest true difference that the experiment would have found in four of five repetitions.
* *Undecided* does not mean equal: three seeds cannot show a difference of a few tenths of a percent.
* Entropy is in nats (natural logarithms): ln 64 = 4.16 if 64 tokens get equal weight. The [tutorial](../tutorial.md#3-why-one-summary-is-too-little)
  says what rank and entropy are.
* Each attention has one colour on every page: blue MHLA, crimson linear, orange softmax, green MALA, purple Focused LA, ochre InLine, teal RALA,
  slate GLA, olive RetNet, magenta Mamba, violet Mamba2, brown Gated DeltaNet. Variants of one attention differ in their dashes.
"""


def table(lines: list) -> list:
    """Cells of the first Markdown table among the lines."""
    rows = []
    for line in lines:
        if line.startswith("|"):
            rows.append([c.strip() for c in line.strip().strip("|").split("|")])
        elif rows:
            break
    return [r for r in rows if not all(re.fullmatch(r":?-+:?", c) for c in r)]


class Page:
    """What a page of results says."""

    def __init__(self, name: str):
        self.name, text = name, (FOLDER / f"{name}.md").read_text()
        self.title = text.split("\n", 1)[0].removeprefix("# ")
        self.verdict = re.search(r"\*\*Verdict: (.*?)\.\*\*", text)[1]
        self.earlier = re.search(r"\*\*An earlier form\*\*: (.*?)\. ", text)
        found = re.search(r"^(?:Results|What came out) \((.*?)\):$", text, re.M)
        cells = table(text[found.end():].split("\n"))
        self.seeds = found[1].removeprefix("mean ± deviation over ")
        # of columns with one title, "at 1,024", the first counts: what is told by the column before it
        self.cells = {row[0]: dict(reversed(list(zip(cells[0], row)))) for row in cells[1:]}
        self.claims = [row[-1] for row in table(text.split("## Claims", 1)[1].split("\n"))[1:]]

    def whole(self, arms: str, column: str) -> str:
        """A cell; of several arms that may be there, "a; b", the first that is."""
        return next(self.cells[a] for a in arms.split("; ") if a in self.cells)[column]

    def cell(self, arms: str, column: str) -> str:
        """Its mean."""
        return self.whole(arms, column).split(" ± ")[0]

    def score(self) -> str:
        """ "holds (4 of 4 claims)" """
        return f"{self.verdict} ({sum(c == 'holds' for c in self.claims)} of {len(self.claims)} claims hold" + \
            (f", {n} do not)" if (n := sum(c == "does not hold" for c in self.claims)) else ")")

    def scale(self) -> str:
        return self.seeds + (f"; {self.earlier[1]}" if self.earlier else "")


def front(pages: dict) -> str:
    out = ["# Results", "",
           "Which claims of the paper hold, as far as two cores can tell? An experiment of `mhla reproduce` tests each claim, at a size that trains in",
           "about an hour. The models are far smaller than the paper's, so a verdict is about this size. *Holds* and *does not hold* are decided by a",
           "stated test; *undecided* means that these runs cannot tell.", "",
           "| claim | result | verdict |", "| --- | --- | --- |"]
    for claim, name, figure, text in CLAIMS:
        if name not in pages:
            out.append(f"| {claim} | Not run yet: `mhla reproduce {name}` | |")
            continue
        page = pages[name]
        said = sentence(page, text)
        picture = f"![{page.title}]({name}-{figure}.svg)"
        out.append(f"| {claim} | {said}<br>{picture} | [{page.score()}]({name}.md), {page.scale()} |")
    out += ["", "## Every table and figure of the paper", "",
            "A figure that only explains the method is not listed.", "",
            "| in the paper | what | tested by | verdict, or why not |", "| --- | --- | --- | --- |"]
    for place, what, names, why in PAPER:
        tests = ", ".join(f"[{n}]({n}.md)" if n in pages else n for n in names) or "-"
        verdicts = [f"{n}: {pages[n].verdict} ({pages[n].scale()})" if n in pages else f"{n}: not run yet" for n in names]
        out.append(f"| {place} | {what} | {tests} | {' '.join(filter(None, ['; '.join(verdicts) + '.' if verdicts else '', why]))} |")
    out += ["", "## How the pages are made", "",
            "`mhla reproduce EXPERIMENT --out docs/results` writes each page; `mhla reproduce` lists the experiments and their costs. A page states the paper's",
            "claim, the result, the test and the command that repeats it. `python3 scripts/results_page.py` makes this page from them. A page that ends with",
            "`-quick` shows the short form, which decides little, one with `-long` the long form. A page that ends with `-shuffled` is a control: the labels",
            "are shuffled, so no claim may be decided.", ""]
    rest = sorted(p.stem for p in FOLDER.glob("*.md") if p.stem != "README" and p.stem not in {n for _, n, _, _ in CLAIMS})
    out += ["Other pages: " + ", ".join(f"[{n}]({n}.md)" for n in rest) + ".", "", HOW]
    return "\n".join(out)


def filled(text: str, name: str, content: str) -> str:
    """The text with the content between the marks of that name."""
    begin, end = f"<!-- {name}: written by scripts/results_page.py -->\n", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    return before + begin + content + end + rest.split(end)[1]


def sentence(page: Page, text: str) -> str:
    """With figures of the page for {arm | column}."""
    return re.sub(r"\{(.*?) \| (.*?)\}", lambda m: page.cell(m[1], m[2]), text)


def verdicts(pages: dict) -> str:
    """The list of README.md: a line for each kind of verdict."""
    kinds = {"Holds": [], "Holds in part, the rest is undecided": [], "Does not hold": [], "Undecided": [], "Not run yet": []}
    for claim, name, _, _ in CLAIMS:
        if name not in pages:
            kinds["Not run yet"].append(f"{claim[:-1]} (`mhla reproduce {name}`)")
            continue
        page, all_claims = pages[name], len(pages[name].claims)
        good, bad = (sum(c == v for c in page.claims) for v in ("holds", "does not hold"))
        kind = "Holds" if page.verdict == "holds" else "Does not hold" if page.verdict == "does not hold" else \
            "Holds in part, the rest is undecided" if good else "Undecided"
        count = f" ({good} of {all_claims} claims hold{f', {bad} do not' if bad else ''})" if 0 < good < all_claims else ""
        kinds[kind].append(f"[{claim[:-1]}](docs/results/{name}.md){count}")
    return "".join(f"* **{kind}**: {'; '.join(claims)}.\n" for kind, claims in kinds.items() if claims)


def language(page: Page) -> str:
    """The table of the guide: bits per byte of the three attentions."""
    names = ("MHLA", "linear", "softmax")
    cells = [page.whole(f"{n}, 512 tokens; {n}, text", "bits per byte") for n in names]
    return f"| {' | '.join(names)} |\n| --- | --- | --- |\n| {' | '.join(cells)} |\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the page is not up to date")
    check = parser.parse_args().check
    pages = {name: Page(name) for _, name, _, _ in CLAIMS if (FOLDER / f"{name}.md").exists()}
    length = next(text for _, name, _, text in CLAIMS if name == "length")
    readme = filled((ROOT / "README.md").read_text(), "verdicts", verdicts(pages))
    readme = filled(readme, "length", sentence(pages["length"], length) + "\n")
    guide = filled((ROOT / "docs" / "guide.md").read_text(), "language", language(pages["language"]))
    wanted = {FOLDER / "README.md": front(pages), ROOT / "README.md": readme, ROOT / "docs" / "guide.md": guide}
    for path, text in wanted.items():
        if check and path.read_text() != text:
            print(f"{path.relative_to(ROOT)} is not what the pages of results say: run python3 scripts/results_page.py")
            return 1
        if not check:
            path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
