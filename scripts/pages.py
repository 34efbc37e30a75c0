"""pages.py: the Markdown that this repository uses, as blocks and as HTML.

make_docs.py makes pages of it and check_docs.py looks for dead links and broken code in it, both with the same idea of what a
heading, a link and a block of code is. Known are headings, paragraphs, lists, tables, code (fenced, or indented by four), quotes,
and inline: code, links, images, bold, italics. Nothing but Python is needed.
"""
import html
import re
from dataclasses import dataclass, field
from typing import Callable, List, Optional

ITEM = re.compile(r"([*+-]|\d+\.) +")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


@dataclass
class Block:
    kind: str  # heading, paragraph, code, table, list, quote
    line: int  # where it begins, from 1
    text: str = ""
    level: int = 0  # of a heading
    language: str = ""  # of fenced code
    rows: List[List[str]] = field(default_factory=list)  # of a table
    items: List[List["Block"]] = field(default_factory=list)  # of a list
    ordered: bool = False
    slug: str = ""  # a heading's anchor, as GitHub makes it


def slug_of(text: str) -> str:
    text = re.sub(r"`|\*", "", LINK.sub(r"\2", text)).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def _cells(line: str) -> List[str]:
    line = re.sub(r"^\s*\||\|\s*$", "", line)
    return [c.strip().replace("\\|", "|") for c in re.split(r"(?<!\\)\|", line)]


def parse(text: str, first: int = 1) -> List[Block]:
    """The blocks of a page, or of an item of a list whose text begins in line `first`."""
    lines, i, blocks = text.split("\n"), 0, []
    seen: dict = {}
    while i < len(lines):
        line, at = lines[i], first + i
        if not line.strip():
            i += 1
        elif line.startswith("<!--"):  # for scripts
            while i < len(lines) and "-->" not in lines[i]:
                i += 1
            i += 1
        elif line.lstrip().startswith("```"):
            indent, language, body = len(line) - len(line.lstrip()), line.strip()[3:].strip(), []
            i += 1
            while i < len(lines) and lines[i].strip() != "```":
                body.append(lines[i][indent:] if not lines[i][:indent].strip() else lines[i])
                i += 1
            blocks.append(Block("code", at, "\n".join(body), language=language))
            i += 1
        elif line.startswith("    "):
            body = []
            while i < len(lines) and (lines[i].startswith("    ") or not lines[i].strip()):
                body.append(lines[i][4:])
                i += 1
            blocks.append(Block("code", at, "\n".join(body).rstrip()))
        elif re.match(r"#{1,6} ", line):
            level, title = len(line.split(" ")[0]), line.split(" ", 1)[1].strip().rstrip("#").strip()
            slug = slug_of(title)
            seen[slug] = seen.get(slug, -1) + 1
            blocks.append(Block("heading", at, title, level=level, slug=slug + (f"-{seen[slug]}" if seen[slug] else "")))
            i += 1
        elif "|" in line and i + 1 < len(lines) and re.fullmatch(r"\s*\|?[\s:|-]*-[\s:|-]*\|?\s*", lines[i + 1]):
            rows = [_cells(line)]
            i += 2
            while i < len(lines) and "|" in lines[i] and lines[i].strip():
                rows.append(_cells(lines[i]))
                i += 1
            blocks.append(Block("table", at, rows=rows))
        elif line.startswith(">"):
            body = []
            while i < len(lines) and lines[i].startswith(">"):
                body.append(lines[i][1:].removeprefix(" "))
                i += 1
            blocks.append(Block("quote", at, items=[parse("\n".join(body), at)]))
        elif ITEM.match(line):
            block = Block("list", at, ordered=line[0].isdigit())
            while i < len(lines) and ITEM.match(lines[i]):
                width, start = ITEM.match(lines[i]).end(), first + i
                body = [lines[i][width:]]
                i += 1
                while i < len(lines):
                    if lines[i].strip() and not lines[i].startswith("  ") and (ITEM.match(lines[i]) or lines[i].startswith("<!--") or not lines[i - 1].strip()):
                        break
                    body.append(lines[i][width:] if lines[i].startswith(" " * width) else lines[i].lstrip())
                    i += 1
                while body and not body[-1].strip():
                    body.pop()
                block.items.append(parse("\n".join(body), start))
            blocks.append(block)
        else:
            body = []
            while i < len(lines) and lines[i].strip() and not re.match(r"#{1,6} |```|>|<!--", lines[i]) and not (body and ITEM.match(lines[i]) and not lines[i][0].isdigit()):
                body.append(lines[i])
                i += 1
            blocks.append(Block("paragraph", at, "\n".join(body)))
    return blocks


def walk(blocks: List[Block]):
    """All blocks, those in lists and quotes too."""
    for block in blocks:
        yield block
        for item in block.items:
            yield from walk(item)


def links(block: Block):
    """(target, is it an image) of the links of a heading, paragraph or table."""
    for text in [block.text] if block.kind in ("heading", "paragraph") else [c for row in block.rows for c in row]:
        for match in LINK.finditer(re.sub(r"(`+).*?\1", "", text, flags=re.S)):
            yield match[3], bool(match[1])
            for inner in LINK.finditer(match[2]):
                yield inner[3], bool(inner[1])


# A cell of a table that is a number, with what may follow it: these are aligned to the right.
NUMBER, NUMBER_CLASS = re.compile(r"\s*(-|[-+]?[\d.,]+( ± [\d.,]+)?( %)?)\s*"), ' class="n"'


def inline(text: str, target: Callable[[str], str]) -> str:
    """HTML of running text; target turns the address of a link into that of the page that is made."""
    kept: List[str] = []

    def keep(markup: str) -> str:
        kept.append(markup)
        return f"\0{len(kept) - 1}\0"

    def link(match) -> str:
        address = html.escape(target(match[3]))
        if match[1]:
            return keep(f'<img src="{address}" alt="{html.escape(match[2])}">')
        return keep(f'<a href="{address}">{inline(match[2], target)}</a>')

    text = re.sub(r"(`+)(.+?)\1", lambda m: keep(f"<code>{html.escape(' '.join(m[2].split()))}</code>"), text, flags=re.S)
    text = html.escape(LINK.sub(link, text), quote=False).replace("&lt;br&gt;", "<br>")
    text = re.sub(r"\*\*(\S(?:.*?\S)?)\*\*", r"<b>\1</b>", text, flags=re.S)
    text = re.sub(r"(?<![\w*])\*([^\s*](?:[^*]*?[^\s*])?)\*(?![\w*])", r"<i>\1</i>", text)
    while re.search("\0(\\d+)\0", text):
        text = re.sub("\0(\\d+)\0", lambda m: kept[int(m[1])], text)
    return text


def render(blocks: List[Block], target: Callable[[str], str], code: Optional[Callable[[Block], str]] = None) -> str:
    out = []
    for b in blocks:
        if b.kind == "heading":
            out.append(f'<h{b.level} id="{b.slug}">{inline(b.text, target)}<a class="anchor" href="#{b.slug}" aria-label="this heading">#</a></h{b.level}>')
        elif b.kind == "paragraph":
            body = inline(b.text, target)
            picture = re.fullmatch(r"\s*<img [^>]*>\s*", body)
            out.append(f"<figure>{body}</figure>" if picture else f"<p>{body}</p>")
        elif b.kind == "code":
            out.append(f"<pre><code>{html.escape(b.text)}</code></pre>")
        elif b.kind == "table":
            head, *rows = b.rows
            top = "".join(f'<th scope="col">{inline(c, target)}</th>' for c in head)
            body = "".join("<tr>" + "".join(f"<td{NUMBER_CLASS if NUMBER.fullmatch(c) else ''}>{inline(c, target)}</td>" for c in row) + "</tr>\n"
                           for row in rows)
            out.append(f'<div class="wide"><table><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>')
        elif b.kind == "list":
            tag = "ol" if b.ordered else "ul"
            items = ""
            for item in b.items:
                inner = render(item, target)
                items += f"<li>{re.sub('^<p>(.*?)</p>', lambda m: m[1], inner, count=1, flags=re.S)}</li>\n"
            out.append(f"<{tag}>\n{items}</{tag}>")
        elif b.kind == "quote":
            out.append(f"<blockquote>{render(b.items[0], target)}</blockquote>")
    return "\n".join(out)
