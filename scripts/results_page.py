#!/usr/bin/env python3
"""results_page.py [--check]: writes docs/results/README.md, the front page of the results, out of the pages beside it.

Every figure and verdict on it is read from a page that `mhla reproduce` wrote. An experiment without a page is said to be missing. With --check
nothing is written, and the exit code is 1 where the front page is not what would be written.
"""
import argparse
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results"

# What is claimed, the experiment, its figure, and what the page says in figures: {arm | column} is a cell of its table.
CLAIMS = [
    ("Linear attention falls behind as sequences get longer, MHLA does not.", "length", 1,
     "At 1,024 tokens MHLA gets {MHLA | at 1,024} % right, linear {linear | at 1,024} %, softmax {softmax | at 1,024} %; MHLA that starts uniform "
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
    ("In a model of clips MHLA replaces softmax attention, where linear attention fails.", "video", 2,
     "Test loss from scratch: softmax {softmax | test loss}, MHLA {MHLA | test loss}, linear {linear | test loss}, hybrid {hybrid | test loss}; begun as "
     "softmax: trained on {softmax, trained on | test loss}, MHLA {softmax to MHLA | test loss}, linear {softmax to linear | test loss}, "
     "hybrid {softmax to hybrid | test loss}."),
    ("MHLA classifies images better than the other attentions.", "deit", 1,
     "Right: MHLA {MHLA | accuracy, %} %, linear {linear | accuracy, %} %, softmax {softmax | accuracy, %} %, MALA {MALA | accuracy, %} %."),
    ("... also images in colour.", "deit-cifar", 1,
     "Right: MHLA {MHLA | accuracy, %} %, linear {linear | accuracy, %} %, softmax {softmax | accuracy, %} %, MALA {MALA | accuracy, %} %."),
    ("In the backbone VLT MHLA classifies better than MALA and RALA.", "vlt", 1,
     "Right: MHLA {MHLA | accuracy, %} %, linear {linear | accuracy, %} %, MALA {MALA | accuracy, %} %, RALA {RALA | accuracy, %} %."),
    ("A mixing matrix that starts with distances and is learned is best.", "mixing", 1,
     "Right: distances, learned {distances, learned | accuracy, %} %; frozen {distances, frozen | accuracy, %} %; uniform, learned "
     "{uniform, learned | accuracy, %} %."),
    ("More blocks are better than one.", "heads", 1,
     "Right: M = 1 {M = 1 | accuracy, %} %, M = 4 {M = 4 (2 x 2) | accuracy, %} %, M = 16 {M = 16 (4 x 4) | accuracy, %} %."),
    ("A convolution of the tokens (CPE) and an output gate each help to make pictures.", "modules", 1,
     "Test loss: neither {neither | test loss}, CPE {CPE | test loss}, gate {gate | test loss}, both {CPE and gate | test loss}."),
]

# Tables and figures of the paper: what is in them, the experiments that test it (none: why, and how someone else can).
PAPER = [
    ("Fig. 1b", "throughput against resolution", ["scaling"], ""),
    ("Fig. 3", "rank and entropy of trained attention", ["collapse", "length"], ""),
    ("Fig. 4b", "the learned mixing matrix", [],
     "A picture without a claim to be judged: `mhla analyze -m RUN --out analysis` draws it of any run."),
    ("Tab. 2a", "DeiT with seven attentions, ImageNet-1K", ["deit", "deit-cifar"], ""),
    ("Tab. 2b", "VLT against other backbones, ImageNet-1K", ["vlt"],
     "300 epochs of ImageNet are out of reach of two cores: `mhla train recipes/vlt-paper.toml` on a larger machine. The paper's top-1: MHLA-VLT-T 82.6, MAViT-T 82.4, RAVLT-T 82.3; MHLA-VLT-S 84.6, MAViT-S 84.3. "
     "Its rows of PVT, NAT, FAT and VMamba are quoted there from others; those models are not in this project."),
    ("Tab. 3, 9, 10", "DiT on ImageNet latents, FID at 256 and 512 px", [],
     "400,000 updates at batch 256. The same in small: `mhla train recipes/dit-fashion.toml`; `mhla measure` computes FID."),
    ("Tab. 4", "SANA with MHLA: FID, CLIP score, GenEval", [],
     "40,000 updates of a 0.6B model. GenEval needs a detector of objects, which is not in this project. The paper's, SANA and with MHLA: FID 6.10 and 5.90, "
     "CLIP score 28.15 and 28.26, GenEval 0.64 and 0.68."),
    ("Tab. 5, Fig. 6", "Wan2.1 adapted to MHLA: loss and time", ["video"], "The paper's figures are not at hand here."),
    ("Video", "Wan with MHLA: VBench", [],
     "Out of reach: it takes many videos of a large model and judges that are not in this project. The paper's figures are not at hand here."),
    ("Tab. 6", "language models of 340M parameters", ["language", "mixers"], "The same size on a larger machine: `mhla train recipes/lm-340m.toml`."),
    ("Tab. 7a", "how the mixing matrix begins, learned or frozen", ["mixing"], ""),
    ("Tab. 7b", "the number of blocks", ["heads"], ""),
    ("Tab. 8", "long documents (LongBench), 325M parameters", [],
     "Needs the models of Tab. 6. The paper's averages, 6.5 to 7.4 for all models, are near the floor."),
    ("Tab. 11", "DiT against LiT, three runs", [],
     "As Tab. 3. The paper's FID of MHLA and LiT: S/2 59.744 and 63.21, B/2 37.519 and 40.86, L/2 21.426 and 24.04, XL/2 19.164 and 20.66. The row of LiT is "
     "not LiT's best."),
    ("Tab. 12", "CPE and gate, DiT-S/2", ["modules"], ""),
    ("Tab. 13", "DeiT-T at 384 and 512 px", ["length"],
     "Tested by length alone. The paper's own on a larger machine: `mhla train recipes/deit-paper.toml`."),
    ("Tab. 14", "time by number of blocks", ["scaling"], ""),
]

HOW = """## How to read a page

* An *arm* is one of the things compared, trained once for each seed. A *claim* says which of two arms has more of one measure, or that an arm
  is above or below a number.
* ± in a table, and the bar in a figure, is the standard deviation between seeds (with n - 1), not the error of the mean; with one seed the bar
  is the error of the test set. A dot is a seed, the upright line the mean. The axis of such a figure does not begin at 0.
* The *error of the test set* is what the finite number n of test pictures leaves open: of a share p it is √(p(1-p)/n), some 0.35 % for 86 % of
  10,000, of rank and entropy the deviation between pictures over √n. Of loss and bits per byte it is not known.
* "t -2.81 at 2.3 degrees of freedom, p 0.092 (needs 0.025)": the difference is 2.81 of its own errors; by
  chance alone so large a difference would come in 9.2 % of all cases, and it counts where that is less than 2.5 %. By Holm's method the
  clearest of k claims needs 0.05/k, the next 0.05/(k-1) and so on, until one fails, and with it all that follow: so the risk that chance
  decides any of them is 5 % in all.
* *Detectable* is the smallest true difference that the experiment would have found in four of five repetitions.
* *Undecided* does not mean equal: three seeds cannot tell apart what differs by a few tenths of a percent.
* Entropy is in nats (natural logarithms): ln 64 = 4.16 if 64 tokens get equal weight. The [tutorial](../tutorial.md#3-why-one-summary-is-too-little)
  says what rank and entropy are.
* One colour is one attention on every page: blue MHLA, crimson linear, orange softmax, green MALA, purple Focused LA, brown InLine, teal RALA.
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
        cells = table(text.split("What came out", 1)[1].split("\n"))
        self.seeds = re.search(r"What came out \((.*?)\)", text)[1].removeprefix("mean ± deviation over ")
        # of columns with one title, "at 1,024", the first counts: what is told by the column before it
        self.cells = {row[0]: dict(reversed(list(zip(cells[0], row)))) for row in cells[1:]}
        self.claims = [row[-1] for row in table(text.split("## Claims", 1)[1].split("\n"))[1:]]

    def cell(self, arms: str, column: str) -> str:
        """The mean in a cell; of several arms that may be there, "a; b", the first that is."""
        row = next(self.cells[a] for a in arms.split("; ") if a in self.cells)
        return row[column].split(" ± ")[0]

    def score(self) -> str:
        """ "holds (4 of 4 claims)" """
        return f"{self.verdict} ({sum(c == 'holds' for c in self.claims)} of {len(self.claims)} claims hold" + \
            (f", {n} do not)" if (n := sum(c == "does not hold" for c in self.claims)) else ")")

    def scale(self) -> str:
        return self.seeds + (f"; {self.earlier[1]}" if self.earlier else "")


def front(pages: dict) -> str:
    out = ["# Results", "",
           "Is the paper right, as far as two cores can tell? Each claim was tested by an experiment of `mhla reproduce`, at a size that trains in an",
           "hour. The models are far smaller than the paper's: a verdict is about this size. *Holds* and *does not hold* are judged by a stated test;",
           "*undecided* means that these runs cannot tell.", "",
           "| claim | what came out | verdict |", "| --- | --- | --- |"]
    for claim, name, figure, sentence in CLAIMS:
        if name not in pages:
            out.append(f"| {claim} | Not run yet: `mhla reproduce {name}` | |")
            continue
        page = pages[name]
        said = re.sub(r"\{(.*?) \| (.*?)\}", lambda m: page.cell(m[1], m[2]), sentence)
        picture = f"![{page.title}]({name}-{figure}.svg)"
        out.append(f"| {claim} | {said}<br>{picture} | [{page.score()}]({name}.md), {page.scale()} |")
    out += ["", "## Every table and figure of the paper", "",
            "As far as their contents are known to this project; a figure that only explains the method is not listed.", "",
            "| in the paper | what | tested by | verdict, or why not |", "| --- | --- | --- | --- |"]
    for place, what, names, why in PAPER:
        tests = ", ".join(f"[{n}]({n}.md)" if n in pages else n for n in names) or "-"
        verdicts = [f"{n}: {pages[n].verdict} ({pages[n].scale()})" if n in pages else f"{n}: not run yet" for n in names]
        out.append(f"| {place} | {what} | {tests} | {' '.join(filter(None, ['; '.join(verdicts) + '.' if verdicts else '', why]))} |")
    out += ["", "## How the pages are made", "",
            "By `mhla reproduce EXPERIMENT --out docs/results` and by nothing else; `mhla reproduce` lists the experiments and what they take. Each page says",
            "what the paper claims, what came out, how it was judged and the command that makes it again. This page is made of them by",
            "`python3 scripts/results_page.py`. Pages that end with `-quick` are of the short form, which decides little, with `-long` of the long one; those",
            "that end with `-shuffled` are controls: with labels that have changed places nothing may be decided.", ""]
    rest = sorted(p.stem for p in FOLDER.glob("*.md") if p.stem != "README" and p.stem not in {n for _, n, _, _ in CLAIMS})
    out += ["Besides: " + ", ".join(f"[{n}]({n}.md)" for n in rest) + ".", "", HOW]
    return "\n".join(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the page is not up to date")
    check = parser.parse_args().check
    pages = {name: Page(name) for _, name, _, _ in CLAIMS if (FOLDER / f"{name}.md").exists()}
    text, path = front(pages), FOLDER / "README.md"
    if check and path.read_text() != text:
        print("docs/results/README.md is not what its pages say: run python3 scripts/results_page.py")
        return 1
    if not check:
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
