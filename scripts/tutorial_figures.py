#!/usr/bin/env python3
"""tutorial_figures.py FOLDER [OUT]: draws the figures of docs/tutorial.md, SVG, from what `mhla analyze` wrote into FOLDER.

The models are the three of section 5, and one with more blocks; the image is one that `make demo` writes. In the folder of runs/:

    mhla analyze -m runs/short/softmax -m runs/short/linear -m runs/short/mhla --out FOLDER/three
    mhla analyze -m runs/short/softmax -m runs/short/linear -m runs/short/mhla --data runs/demo-1/test-image.png --samples 1
        --no-rank --dump FOLDER/matrices
    mhla train recipes/fashion-mnist.toml --patch 2 --blocks 4,4 --steps 500 --warmup_steps 50 --rate 2e-3 --out runs/fine
    mhla analyze -m runs/fine --out FOLDER/fine
    cp runs/demo-1/test-image.png FOLDER/picture.png
    python3 scripts/tutorial_figures.py FOLDER

They go into docs/, or into the folder that a second argument names. Nothing but Python is needed.
"""
import argparse
import base64
import json
import pathlib
import re
import struct
import sys
import zlib

OUT = pathlib.Path(__file__).resolve().parent.parent / "docs"
NAMES = {"softmax": "#c8500a", "linear": "#b8245e", "mhla": "#0b63b0"}  # those of src/report/palette.css
LABELS = {"softmax": "softmax", "linear": "linear", "mhla": "MHLA"}


def npy(path: pathlib.Path):
    """A matrix of float64 as a list of rows."""
    raw = path.read_bytes()
    length = struct.unpack("<H", raw[8:10])[0]
    shape = tuple(map(int, re.search(rb"'shape': \((\d+), (\d+)\)", raw).groups()))
    assert b"'<f8'" in raw[10:10 + length]
    values = struct.unpack(f"<{shape[0] * shape[1]}d", raw[10 + length:10 + length + 8 * shape[0] * shape[1]])
    return [values[i * shape[1]:(i + 1) * shape[1]] for i in range(shape[0])]


def colour(x: float):
    """0 is white, 1 dark blue, by way of green."""
    stops = [(255, 255, 255), (190, 220, 200), (60, 150, 160), (20, 60, 120), (8, 20, 60)]
    x = min(max(x, 0.0), 1.0) * (len(stops) - 1)
    i = min(int(x), len(stops) - 2)
    return tuple(round(a + (b - a) * (x - i)) for a, b in zip(stops[i], stops[i + 1]))


def image(rows, x, y, side, title="") -> str:
    """A heat map, a pixel for each entry, as a PNG inside the SVG; entries 0..1."""
    raw = b"".join(b"\0" + bytes(c for v in row for c in colour(v)) for row in rows)
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    png = (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 2, 0, 0, 0))
           + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))
    data = base64.b64encode(png).decode()
    caption = f'<text x="{x + side / 2}" y="{y - 7}" text-anchor="middle">{title}</text>' if title else ""
    return (f'{caption}<image x="{x}" y="{y}" width="{side}" height="{side}" style="image-rendering:pixelated" '
            f'href="data:image/png;base64,{data}"/><rect x="{x}" y="{y}" width="{side}" height="{side}" fill="none" stroke="#999"/>')


def write(name: str, width: int, height: int, body: str) -> None:
    (OUT / name).write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
                            f'font-family="sans-serif" font-size="13" fill="#222"><rect width="{width}" height="{height}" fill="#fff"/>\n{body}\n</svg>\n')
    print(OUT / name)


def matrices(folder: pathlib.Path, layer: int, head: int) -> None:
    """The attention matrices of one picture, tokens sorted block after block."""
    order = sorted(range(64), key=lambda t: (t // 32, t % 8 // 4, t // 8, t % 8))
    body = []
    for i, name in enumerate(NAMES):
        A = npy(folder / name / f"sample-0.layer-{layer}.head-{head}.A.npy")
        rows = [[(A[t][u] / 0.12) ** 0.6 for u in order] for t in order]
        body.append(image(rows, 20 + 250 * i, 34, 230, LABELS[name]))
        for cut in (1, 2, 3):
            at = cut * 230 / 4
            body.append(f'<path d="M{20 + 250 * i + at} 34v230M{20 + 250 * i} {34 + at}h230" stroke="#888" stroke-width=".6" stroke-dasharray="2 3"/>')
    bar = [[i / 99 for i in range(100)]]
    body.append(image(bar * 8, 20, 285, 100).replace('height="100"', 'height="10"'))
    body.append('<text x="130" y="294">weight 0 to 0.12 and more; a row is what a token looks at</text>')
    write("tutorial-matrices.svg", 770, 308, "\n".join(body))


def bars(analysis: dict) -> None:
    """Rank and entropy by layer, means over heads and samples."""
    body, models = [], {m["name"]: m for m in analysis["models"]}
    for panel, (key, title, top, ticks) in enumerate([("rank", "rank (64 tokens)", 64, (0, 16, 32, 48, 64)), ("entropy", "entropy (ln 64 = 4.16)", 4.16, (0, 1, 2, 3, 4))]):
        x0, y0, w, h = 55 + 365 * panel, 40, 300, 170
        body.append(f'<text x="{x0}" y="22" font-weight="bold">{title}</text>')
        for tick in ticks:
            y = y0 + h - h * tick / top
            body.append(f'<path d="M{x0} {y:.1f}h{w}" stroke="#ddd"/><text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{tick}</text>')
        for layer in range(4):
            for i, name in enumerate(NAMES):
                heads = [x for x in models[name]["by_head"] if x["layer"] == layer]
                value = sum(x[key] for x in heads) / len(heads)
                x = x0 + 14 + layer * 73 + i * 19
                body.append(f'<rect x="{x}" y="{y0 + h - h * value / top:.1f}" width="17" height="{h * value / top:.1f}" fill="{NAMES[name]}"><title>{LABELS[name]}, layer {layer}: {value:.2f}</title></rect>')
                if key == "rank":
                    y = y0 + h - h * heads[0]["bound"] / top
                    body.append(f'<path d="M{x - 1} {y:.1f}h19" stroke="#000" stroke-width="2"/>')
            body.append(f'<text x="{x0 + 14 + layer * 73 + 28}" y="{y0 + h + 17}" text-anchor="middle">layer {layer}</text>')
    for i, name in enumerate(NAMES):
        body.append(f'<rect x="{55 + 95 * i}" y="246" width="12" height="12" fill="{NAMES[name]}"/><text x="{72 + 95 * i}" y="257">{LABELS[name]}</text>')
    body.append('<path d="M345 252h19" stroke="#000" stroke-width="2"/><text x="372" y="257">upper bound</text>')
    write("tutorial-rank.svg", 740, 270, "\n".join(body))


def token(folder: pathlib.Path, picture: pathlib.Path, layer: int, head: int, at: int) -> None:
    """What one patch of the picture looks at."""
    data = base64.b64encode(picture.read_bytes()).decode()
    side, y = 170, 34
    cell = side / 8
    body = [f'<rect x="20" y="{y}" width="{side}" height="{side}"/><image x="{20 + side / 16}" y="{y + side / 16}" width="{side * 7 / 8}" height="{side * 7 / 8}" '
            f'style="image-rendering:pixelated" href="data:image/png;base64,{data}"/><text x="{20 + side / 2}" y="{y - 7}" text-anchor="middle">the image</text>']
    for i, name in enumerate(NAMES):
        row = npy(folder / name / f"sample-0.layer-{layer}.head-{head}.A.npy")[at]
        grid = [[(row[r * 8 + c] / max(row)) for c in range(8)] for r in range(8)]
        body.append(image(grid, 20 + 190 * (i + 1), y, side, LABELS[name]))
    for i in range(4):
        body.append(f'<rect x="{20 + 190 * i + at % 8 * cell}" y="{y + at // 8 * cell}" width="{cell}" height="{cell}" fill="none" stroke="#e0261e" stroke-width="2.5"/>')
    body.append(f'<text x="20" y="{y + side + 20}">red: the query patch; dark: large weight (darkest: the largest)</text>')
    write("tutorial-token.svg", 20 + 190 * 4, y + side + 32, "\n".join(body))


def mixing(analysis: dict) -> None:
    """Each row of a mixing matrix as a picture of the grid of blocks, at the place of the block that it belongs to."""
    found = analysis["models"][0]["mixing"]
    rows_, columns = found[0]["grid"]
    body = []
    for i, (title, mix) in enumerate([("at first, all layers", found[0]["before"])] + [(f"learnt, layer {x['layer']}", x["after"]) for x in found]):
        x0, y0, step = 16 + 152 * i, 34, 34
        top = max(max(r) for r in mix)
        body.append(f'<text x="{x0 + 68}" y="{y0 - 10}" text-anchor="middle">{title}</text>')
        for b, row in enumerate(mix):
            grid = [[row[r * columns + c] / top for c in range(columns)] for r in range(rows_)]
            body.append(image(grid, x0 + b % columns * step, y0 + b // columns * step, step - 3))
    write("tutorial-mixing.svg", 16 + 152 * (len(found) + 1), 34 + 34 * rows_ + 12, "\n".join(body))


def flow() -> None:
    """Who reads from whom: keys and values above, queries below."""
    hues, body = ["#0b5cad", "#2e8b57", "#b3261e", "#8a5a00"], []
    dots = lambda x0, y, colours: "".join(f'<circle cx="{x0 + 18 * i}" cy="{y}" r="5" fill="{c}"/>' for i, c in enumerate(colours))
    line = lambda x, y, u, v, w=1.0, c="#888": f'<path d="M{x:.1f} {y}L{u:.1f} {v}" stroke="{c}" stroke-width="{w:.2f}" opacity=".75"/>'
    box = lambda x, y, w, text, c="#444": (f'<rect x="{x - w / 2}" y="{y - 12}" width="{w}" height="24" rx="4" fill="#fff" stroke="{c}" stroke-width="2"/>'
                                           f'<text x="{x}" y="{y + 5}" text-anchor="middle" fill="{c}">{text}</text>')
    top, middle, lower, bottom = 62, 110, 190, 238
    for panel, title in enumerate(["softmax: T x T weights", "linear: one summary S", "MHLA: M summaries, M mixtures"]):
        x0 = 24 + 262 * panel
        xs, cs = [x0 + 18 * i for i in range(12)], [hues[i // 3] if panel == 2 else "#555" for i in range(12)]
        body.append(f'<text x="{x0 + 99}" y="22" text-anchor="middle" font-weight="bold">{title}</text>')
        body.append(f'<text x="{x0 + 99}" y="44" text-anchor="middle" fill="#666">keys and values</text><text x="{x0 + 99}" y="{bottom + 25}" text-anchor="middle" fill="#666">queries</text>')
        if panel == 0:
            body += [line(x, top, u, bottom, 0.5) for x in xs for u in xs]
        elif panel == 1:
            body += [line(x, top, x0 + 99, 150) + line(x0 + 99, 150, x, bottom) for x in xs] + [box(x0 + 99, 150, 34, "S")]
        else:
            centres = [xs[3 * b + 1] for b in range(4)]
            for b, x in enumerate(centres):
                for i, u in enumerate(centres):
                    body.append(line(x, middle, u, lower, (4.5, 2, 1, 0.4)[abs(b - i)], hues[b]))
            body += [line(xs[t], top, centres[t // 3], middle, 1, cs[t]) + line(centres[t // 3], lower, xs[t], bottom, 1, cs[t]) for t in range(12)]
            body += [box(x, middle, 34, f"S{b + 1}", hues[b]) + box(x, lower, 34, f"S'{b + 1}", hues[b]) for b, x in enumerate(centres)]
            body.append(f'<text x="{x0 + 187}" y="154" fill="#666">m[4,4]</text>')
        body.append(dots(x0, top, cs) + dots(x0, bottom, cs))
    write("tutorial-flow.svg", 790, 275, "\n".join(body))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT", nargs="?", default=OUT)
    args = parser.parse_args()
    folder = args.folder
    globals()["OUT"] = args.out
    flow()
    matrices(folder / "matrices", layer=1, head=0)
    token(folder / "matrices", folder / "picture.png", layer=1, head=0, at=27)
    bars(json.loads((folder / "three" / "analysis.json").read_text()))
    mixing(json.loads((folder / "fine" / "analysis.json").read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
