"""The HTML of a page: text, tables and pictures in one file that fetches nothing.

A content security policy in the page forbids every fetch, and every script except one, which sorts tables and is named
by its hash. So a browser shows only what is in the file. Text from outside (topics, keys, paths, expectations) is made
harmless here and nowhere else: markup is escaped, control characters and marks of writing direction are written as
escapes. `Html` is markup; a plain `str` is text that is not escaped yet.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib import resources
from typing import NamedTuple, NewType
from urllib.parse import quote

from bench.report.charts.canvas import Chart, drawn
from remoting.printable import printable

__all__ = [
    "Cell",
    "Html",
    "PageSection",
    "Tile",
    "bullets",
    "details",
    "document",
    "figure",
    "joined",
    "links",
    "note",
    "table",
    "terms",
    "text",
    "tiles",
    "verdict",
]

Html = NewType("Html", str)
_LONG_TABLE = 20
_FIGURE = re.compile(r"[-\d,.]+ (ms|s|min|h|d|y)")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d UTC)")


@dataclass(frozen=True, slots=True)
class PageSection:
    """A part of a page: the name for links, the heading, the body."""

    key: str
    heading: str
    body: Html


class Cell(NamedTuple):
    """A table cell that is not sorted by its text: the text, and the number to sort by."""

    shown: str
    value: float


class Tile(NamedTuple):
    """A large figure: its name, the figure, a style ("", "good" or "bad"), and a remark below it."""

    name: str
    figure: str
    style: str = ""
    remark: str = ""


def text(words: str) -> Html:
    """Return plain text as markup: a browser interprets no tag and no control character in it."""
    return Html(escape(printable(words, lines=True), quote=True))


def joined(parts: Iterable[Html]) -> Html:
    """Put pieces of a page below each other."""
    return Html("\n".join(parts))


def note(words: str, style: str = "") -> Html:
    """Return a paragraph; ``style`` is a class of the style sheet."""
    return Html(f"<p{_class(style)}>{text(words)}</p>")


def _class(style: str) -> str:
    return f' class="{escape(style)}"' if style else ""


def verdict(badge: str, words: str, style: str) -> Html:
    """Return the first paragraph: a few words in bold, then a few sentences."""
    return Html(f"<p{_class(style)}><strong>{text(badge)}</strong> {text(words)}</p>")


def links(pairs: Iterable[tuple[str, str]]) -> Html:
    """Return links to files beside the page: (path, name) each."""
    return Html(
        "<ul>" + "".join(f'<li><a href="{escape(quote(path))}">{text(name)}</a></li>' for path, name in pairs) + "</ul>"
    )


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Cell]],
    *,
    words: Sequence[int] = (),
    sorts: bool = False,
) -> Html:
    """Return a table; the first column names its row, the columns numbered in ``words`` hold sentences.

    On a phone, a table of more than `_LONG_TABLE` rows scrolls within its own box, and a row is one line.

    ``sorts``: a click on a head sorts by that column.
    """
    head = "".join(f'<th scope="col"{_words(n in words)}>{text(name)}</th>' for n, name in enumerate(heads))
    lines = ["<tr>" + "".join(_cell(cell, n, n in words) for n, cell in enumerate(row)) + "</tr>" for row in rows]
    body = "\n".join(lines)
    title = f'<p class="caption">{text(caption)}</p>' if caption else ""
    name = f' aria-label="{text(caption)}"' if caption else ""
    style = ' class="sorts"' if sorts and len(lines) > 1 else ""
    box = "scroll long" if len(lines) > _LONG_TABLE else "scroll"
    return Html(
        f'{title}<div class="{box}"><table{style}{name}><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _words(holds: bool) -> str:
    return ' class="words"' if holds else ""


def _cell(cell: str | Cell, column: int, words: bool) -> str:
    shown = cell if isinstance(cell, str) else cell.shown
    value = "" if isinstance(cell, str) else f' data-v="{cell.value:g}"'
    if not column:
        return f'<th scope="row"{_words(words)}{value}>{_isolated(shown)}</th>'
    return f"<td{_words(words)}{value}>{_isolated(shown)}</td>"


def _isolated(words: str) -> Html:
    """Isolate text that may be written from right to left, so that its neighbours stay in place.

    Lines do not break between a figure and its unit; a moment breaks only between day and time.
    """
    if _FIGURE.fullmatch(words):
        return text(words.replace(" ", "\u00a0"))
    if moment := _MOMENT.fullmatch(words):
        return Html(" ".join(f'<span class="one">{text(part)}</span>' for part in moment.groups()))
    return text(words) if words.isascii() else Html(f"<bdi>{text(words)}</bdi>")


def tiles(figures: Iterable[Tile], style: str = "tiles") -> Html:
    """Return a row of figures."""
    cells = "".join(
        f"<div><dt>{text(one.name)}</dt><dd{_class(one.style)}>{text(one.figure)}"
        f"{f'<small>{text(one.remark)}</small>' if one.remark else ''}</dd></div>"
        for one in figures
    )
    return Html(f'<dl class="{escape(style)}">{cells}</dl>')


def bullets(lines: Iterable[str]) -> Html:
    """Return a list of sentences."""
    return Html("<ul>" + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>")


def terms(pairs: Iterable[tuple[str, str]]) -> Html:
    """Return a list of terms and what each means."""
    body = "".join(f"<dt>{text(term)}</dt><dd>{text(meaning)}</dd>" for term, meaning in pairs)
    return Html(f'<dl class="terms">{body}</dl>')


def details(summary: str, body: Html) -> Html:
    """Return a block that opens when its summary is clicked."""
    return Html(f"<details><summary>{text(summary)}</summary>{body}</details>")


def figure(chart: Chart | None, caption: str, why_empty: str = "Nothing to draw.") -> Html:
    """Return a picture with a caption, or a sentence where there is nothing to draw."""
    if chart is None:
        return note(why_empty, "soft")
    return Html(f'<figure id="{escape(chart.key)}">{drawn(chart)}<figcaption>{text(caption)}</figcaption></figure>')


def document(title: str, lead: Html, sections: Sequence[PageSection]) -> str:
    """Return the whole page: one file, nothing fetched."""
    style, script = (_beside(name) for name in ("page.css", "page.js"))
    allowed = base64.b64encode(sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{allowed}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    jumps = " ".join(f'<a href="#{escape(s.key)}">{text(s.heading)}</a>' for s in sections)
    body = "\n".join(
        f'<section id="{escape(s.key)}"><h2>{text(s.heading)}</h2>\n{s.body}\n</section>' for s in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<title>{text(title)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{text(title)}</h1>
{lead}
<nav aria-label="Sections">{jumps}</nav></header>
<main>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""


def _beside(name: str) -> str:
    return resources.files("bench.report.pieces").joinpath(name).read_text(encoding="utf-8")
