"""api_reference.py: a public header as a page of HTML.

The headers are written as manuals: an opening comment, sections (/* ---- 1. Title ---- */), and before each declaration a comment
that says what it does. This keeps their order and their words; every function, type, constant and macro becomes an anchor, and
every mention of one a link.
"""
import html
import re
from typing import Callable, Dict, List, Tuple

BANNER = re.compile(r"^/\* -{4,} *(.*?) *-{4,}")
PLUMBING = re.compile(r"#(ifndef|define|endif|ifdef|include|if|else|undef)\b.*(_H\b|__cplusplus|__GNUC__|<std\w+\.h>|<mhla/)|#endif|#else$|extern \"C\" \{|^\}$|#define MHLA_API")
NAME = re.compile(r"\b(mhla_\w+|MHLA_\w+)\b")


def chunks(text: str) -> List[str]:
    """What stands between empty lines, with structures and comments kept whole."""
    found, now, depth, comment = [], [], 0, False
    for line in text.split("\n"):
        if not line.strip() and depth == 0 and not comment:
            if now:
                found.append("\n".join(now))
            now = []
            continue
        now.append(line)
        rest = line
        while rest:  # braces outside comments
            if comment:
                end = rest.find("*/")
                comment, rest = end < 0, rest[end + 2:] if end >= 0 else ""
            else:
                start = rest.find("/*")
                code, rest = (rest, "") if start < 0 else (rest[:start], rest[start + 2:])
                comment = start >= 0
                if not re.match(r'\s*extern "C" \{', code):
                    depth += code.count("{") - code.count("}")
        depth = max(depth, 0)
    return found + (["\n".join(now)] if now else [])


def split_comment(chunk: str) -> Tuple[str, str]:
    """A leading comment, and what it speaks of."""
    if not chunk.startswith("/*"):
        return "", chunk
    end = chunk.index("*/") + 2
    rest = chunk[end:]
    if rest and not rest.startswith("\n"):
        return "", chunk
    return chunk[:end], rest.lstrip("\n")


def names_of(code: str) -> List[str]:
    """What a piece of code declares, most important first."""
    bare = re.sub(r"/\*.*?\*/", "", code, flags=re.S)
    found = re.findall(r"\b(mhla_\w+)\s*\((?!\*)", "\n".join(x for x in bare.split(";") if "MHLA_API" in x))
    found += re.findall(r"typedef (?:struct|enum) (mhla_\w+)", bare) + re.findall(r"\(\*(mhla_\w+)\)\(", bare)
    found += [n for n in re.findall(r"#define (MHLA_\w+)", bare)]
    for macro, rows in re.findall(r"#define (MHLA_\w+)_LIST\(X\)((?:.*\\\n)*.*)", code):  # X(PAPER, ...) makes MHLA_MIX_PAPER
        prefix = {"MHLA_STATUS": "MHLA"}.get(macro, macro)
        found += [f"{prefix}_{name}" for name in re.findall(r"\bX\((\w+),", rows)]
    body = re.search(r"enum(?: mhla_\w+)? \{(.*?)\}", bare, re.S)
    found += re.findall(r"^\s*(MHLA_[A-Z0-9_]+)\s*(?:=|,|$)", body[1].replace(", MHLA", ",\nMHLA"), re.M) if body else []
    return list(dict.fromkeys(found))


def comment_html(comment: str, link: Callable[[str], str]) -> str:
    """Paragraphs of a comment; what is indented keeps its lines."""
    lines = re.sub(r"^/\*+ ?|\s*\*/$", "", comment).split("\n")
    lines = [re.sub(r"^ ?\* ?", "", line).rstrip() for line in lines]
    out, now = [], []

    def flush() -> None:
        if now:
            indented = all(line.startswith("  ") or not line for line in now)
            body = re.sub(r"`([^`]+)`", r"<code>\1</code>", link(html.escape("\n".join(now), quote=False)))
            out.append(f"<pre>{body}</pre>" if indented else f"<p>{body}</p>")
            now.clear()

    for line in lines:
        if not line.strip():
            flush()
        else:
            if now and line.startswith("  ") != now[-1].startswith("  "):
                flush()
            now.append(line)
    flush()
    return "\n".join(out)


def sections(text: str) -> List[dict]:
    """[{title, comment, entries: [{names, comment, code}]}]; the first is the opening comment."""
    found: List[dict] = []
    for chunk in chunks(text):
        banner = BANNER.match(chunk)
        if banner or not found:
            comment, code = split_comment(chunk)
            if banner:
                comment = re.sub(r"^/\* -{4,}.*?-{4,}(\s*\*/$|\n)", "/*\n", comment)
                comment = "" if comment.strip() in ("/*", "/* */") else comment
            found.append({"title": banner[1] if banner else "", "comment": comment, "entries": []})
            chunk = code
        lines = [line for line in chunk.split("\n") if not PLUMBING.match(line)]
        chunk = "\n".join(lines).strip("\n")
        if not chunk:
            continue
        # a comment in the middle of a chunk begins a new entry
        for part in re.split(r"\n(?=/\*)", chunk):
            comment, code = split_comment(part)
            entry = {"names": names_of(code), "comment": comment, "code": code}
            if not entry["names"] and found[-1]["entries"] and not comment:
                found[-1]["entries"][-1]["code"] += "\n" + code
            else:
                found[-1]["entries"].append(entry)
    return found


def all_names(text: str) -> List[str]:
    return [n for s in sections(text) for e in s["entries"] for n in e["names"]]


def page(text: str, here: str, where: Dict[str, str]) -> str:
    """The body of the page `here`; where: name -> page that declares it."""
    def link(escaped: str) -> str:
        def one(match) -> str:
            at = where.get(match[1])
            return match[1] if at is None else f'<a href="{"" if at == here else at}#{match[1]}">{match[1]}</a>'
        return NAME.sub(one, escaped)

    found = sections(text)
    out = ['<p class="note">Made from the header, whose words and order these are.</p>', comment_html(found[0]["comment"], link)]
    titles = [s["title"] for s in found[1:]]
    out.append("<ul>" + "".join(f'<li><a href="#section-{i}">{html.escape(t)}</a></li>' for i, t in enumerate(titles, 1)) + "</ul>")
    done = set()
    for i, s in enumerate(found):
        if i:
            out.append(f'<h2 id="section-{i}">{html.escape(s["title"])}</h2>')
            out.append(comment_html(s["comment"], link) if s["comment"] else "")
        for e in s["entries"]:
            anchors = "".join(f'<span id="{n}"></span>' for n in e["names"] if n not in done)
            done.update(e["names"])
            main = [n for n in e["names"] if n.startswith("mhla_")] or e["names"]
            head = f"<h3>{', '.join(html.escape(n) for n in main[:4])}{', …' if len(main) > 4 else ''}</h3>" if main else ""
            code = re.sub(r" +\\$", " \\\\", re.sub(r"\bMHLA_API ", "", e["code"]), flags=re.M)
            out.append(f'<section class="api">{anchors}{head}{comment_html(e["comment"], link) if e["comment"] else ""}')
            out.append((f"<pre><code>{link(html.escape(code, quote=False))}</code></pre>" if code else "") + "</section>")
    return "\n".join(out)
