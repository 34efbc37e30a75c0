#!/usr/bin/env python3
"""Time and memory of DiT-S/2 against the number of tokens, MHLA beside softmax, as a table and as a figure.

    python bench/resolution.py docs/resolution.svg
    python bench/resolution.py out.svg --softmax-tokens 4096 --seconds 1
    python bench/resolution.py out.svg --tokens 1024

Runs `mhla bench resolution` row by row: one image, 256 to 65,536 tokens or as many as --tokens; softmax as far as
--softmax-tokens. The dashed line is what time would be if it grew with the tokens alone, from 1,024 on."""
import argparse
import html
import json
import math
import pathlib
import subprocess

TOKENS = [256, 1024, 4096, 16384, 65536]
WIDTH, HEIGHT, LEFT, TOP = 360, 250, 64, 40
COLOURS = {"mhla": "#0b63b0", "softmax": "#c8500a"}  # those of src/report/palette.css
NAMES = {"mhla": "MHLA", "softmax": "softmax"}


def measure(program, operator, tokens, seconds):
    argv = [program, "bench", "resolution", f"dit-{tokens}", "--operator", operator, "--seconds", str(seconds), "--json"]
    return json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)["rows"][0]


def panel(x0, title, unit, series, extra=None):
    """A chart with logarithms on both axes: {name: [(tokens, value)]}."""
    values = [v for points in series.values() for _, v in points]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high += high == low  # all values the same power of ten

    def at(tokens, value):
        x = x0 + LEFT + (math.log2(tokens) - 8) / 8 * WIDTH
        return x, TOP + HEIGHT - (math.log10(value) - low) / (high - low) * HEIGHT

    out = [f'<text x="{x0 + LEFT}" y="{TOP - 16}" class="title">{html.escape(title)}</text>']
    for power in range(low, high + 1):
        x, y = at(256, 10.0**power)
        out.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x + WIDTH:.1f}" y2="{y:.1f}" class="grid"/>')
        out.append(f'<text x="{x - 8:.1f}" y="{y + 4:.1f}" class="end">{10.0**power:g} {unit}</text>')
    for tokens in TOKENS:
        x, y = at(tokens, 10.0**low)
        out.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" class="middle">{tokens:,}</text>')
    if extra:
        (xa, ya), (xb, yb) = (at(*p) for p in extra)
        out.append(f'<line x1="{xa:.1f}" y1="{ya:.1f}" x2="{xb:.1f}" y2="{yb:.1f}" class="ideal"/>')
    for name, points in series.items():
        places = [at(*p) for p in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        out.append(f'<polyline points="{line}" stroke="{COLOURS[name]}" class="curve"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[name]}"/>' for x, y in places]
        x, y = places[-1]
        out.append(f'<text x="{x - 6:.1f}" y="{y - 8:.1f}" class="end" fill="{COLOURS[name]}">{NAMES[name]}</text>')
    return out


def figure(rows):
    times, memory = {}, {}
    for r in rows:
        times.setdefault(r["variant"], []).append((r["tokens"], r["best_ms"] / 1e3))
        memory.setdefault(r["variant"], []).append((r["tokens"], r["memory_bytes"] / 2**20))
    base, most = dict(times["mhla"]).get(1024), times["mhla"][-1][0]
    ideal = [(1024, base), (most, base * most / 1024)] if base and most > 1024 else None
    wide = LEFT + WIDTH + 24
    body = panel(0, "One evaluation of DiT-S/2, time", "s", times, ideal) + panel(wide, "memory", "MiB", memory)
    style = ("text{font:12px sans-serif;fill:#444}.title{font-weight:bold}.end{text-anchor:end}.middle{text-anchor:middle}"
             ".grid{stroke:#ddd}.curve{fill:none;stroke-width:2}.ideal{stroke:#888;stroke-dasharray:4 4}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * wide}" height="{TOP + HEIGHT + 56}" role="img" '
            f'aria-label="time and memory against tokens"><style>{style}</style><rect width="100%" height="100%" fill="#fff"/>\n'
            + "\n".join(body) + f'\n<text x="{wide}" y="{TOP + HEIGHT + 42}" class="middle">tokens</text></svg>\n')


def main():
    built = pathlib.Path(__file__).resolve().parent.parent / "build" / "mhla"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("svg", help="the figure")
    parser.add_argument("--program", default=str(built), help="default: build/mhla")
    parser.add_argument("--tokens", type=int, default=TOKENS[-1], help="the most that are tried; default 65536")
    parser.add_argument("--softmax-tokens", type=int, default=16384, help="the most that softmax is tried with; default 16384")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each row")
    args = parser.parse_args()
    rows = []
    print(f"{'tokens':>8}{'attention':>11}{'best':>12}{'of peak':>10}{'memory':>12}")
    for tokens in (n for n in TOKENS if n <= max(args.tokens, TOKENS[0])):
        for operator in ["mhla"] + ["softmax"] * (tokens <= args.softmax_tokens):
            r = measure(args.program, operator, tokens, args.seconds) | {"tokens": tokens}
            rows.append(r)
            print(f"{tokens:8,}{operator:>11}{r['best_ms'] / 1e3:10.3f} s{r['percent_of_peak']:8.1f} %"
                  f"{r['memory_bytes'] / 2**20:8.0f} MiB", flush=True)
    pathlib.Path(args.svg).write_text(figure(rows))


if __name__ == "__main__":
    main()
