"""The HTML of a page: text, tables, pictures, put together so that nothing is fetched from anywhere.

A content security policy in the page itself forbids every fetch, so that what a browser shows is what stands in the
file. Text that comes from outside (topics, paths, expectations) is escaped here and nowhere else: whatever returns or
takes `Html` is markup already, a plain `str` is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import NewType

from bench.report.canvas import Chart, drawn

__all__ = [
    "Html",
    "Section",
    "bullets",
    "details",
    "document",
    "figure",
    "joined",
    "note",
    "table",
    "terms",
    "text",
    "tiles",
]

Html = NewType("Html", str)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: the name that links use, the heading, what stands below it."""

    key: str
    heading: str
    body: Html


def text(words: str) -> Html:
    """Return plain text as markup."""
    return Html(escape(words, quote=True))


def joined(parts: Iterable[Html]) -> Html:
    """Put pieces of a page below each other."""
    return Html("\n".join(parts))


def note(words: str, style: str = "") -> Html:
    """Return a paragraph; ``style`` is a class of the style sheet."""
    return Html(f"<p{_class(style)}>{text(words)}</p>")


def _class(style: str) -> str:
    return f' class="{escape(style)}"' if style else ""


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words: Sequence[int] = (),
) -> Html:
    """Return a table; the first column names its row, the columns numbered in ``words`` hold sentences."""
    styles = dict.fromkeys(words, ' class="words"')
    head = "".join(f'<th scope="col"{styles.get(n, "")}>{text(name)}</th>' for n, name in enumerate(heads))
    lines = [
        "<tr>"
        + "".join(
            f'<th scope="row"{styles.get(0, "")}>{text(cell)}</th>'
            if n == 0
            else f"<td{styles.get(n, '')}>{text(cell)}</td>"
            for n, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    ]
    body = "\n".join(lines)
    title = f'<p class="caption">{text(caption)}</p>' if caption else ""
    name = f' aria-label="{text(caption)}"' if caption else ""
    return Html(
        f'{title}<div class="scroll"><table{name}><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def tiles(figures: Iterable[tuple[str, str, str]]) -> Html:
    """Return a row of (name, figure, style); style is "", "good" or "bad"."""
    cells = "".join(
        f"<div><dt>{text(name)}</dt><dd{_class(style)}>{text(value)}</dd></div>" for name, value, style in figures
    )
    return Html(f'<dl class="tiles">{cells}</dl>')


def bullets(lines: Iterable[str]) -> Html:
    """Return a list of sentences."""
    return Html("<ul>" + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>")


def terms(pairs: Iterable[tuple[str, str]]) -> Html:
    """Return a list of terms and what each means."""
    body = "".join(f"<dt>{text(term)}</dt><dd>{text(meaning)}</dd>" for term, meaning in pairs)
    return Html(f'<dl class="terms">{body}</dl>')


def details(summary: str, body: Html) -> Html:
    """Return something that opens when its summary is clicked."""
    return Html(f"<details><summary>{text(summary)}</summary>{body}</details>")


def figure(chart: Chart | None, caption: str, why_empty: str = "Nothing to draw.") -> Html:
    """Return a picture with a caption, or a sentence where there is nothing to draw."""
    if chart is None:
        return note(why_empty, "soft")
    return Html(f'<figure id="{escape(chart.key)}">{drawn(chart)}<figcaption>{text(caption)}</figcaption></figure>')


def document(title: str, lead: Html, sections: Sequence[Section]) -> str:
    """Return the whole page: one file, nothing fetched."""
    style = resources.files("bench.report").joinpath("page.css").read_text(encoding="utf-8")
    links = " ".join(f'<a href="#{escape(s.key)}">{text(s.heading)}</a>' for s in sections)
    body = "\n".join(
        f'<section id="{escape(s.key)}"><h2>{text(s.heading)}</h2>\n{s.body}\n</section>' for s in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{text(title)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{text(title)}</h1>
{lead}
<nav aria-label="Sections">{links}</nav></header>
<main>
{body}
</main>
</body>
</html>
"""
