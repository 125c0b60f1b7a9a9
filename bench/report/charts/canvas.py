"""One drawing as inline SVG: sizes, colours, fonts, and the way from a matplotlib figure to a piece of a page.

A chart is drawn twice, for a wide page (and print) and for a phone, and the page shows the one that fits. Colours are
CSS variables, so that the same SVG suits white and dark screens and paper. The trick: matplotlib draws with stand-in
colours (`INK`, `SERIES`...), and `to_svg` replaces each by its variable. page.css gives the values, the palette of
Okabe and Ito, whose colours people with any kind of colour blindness can tell apart. No chart relies on colour: each
line has its own dash and marker, too. Text stays text: it can be searched, scaled and read aloud.

matplotlib is loaded when the first chart is drawn, so a command that draws nothing starts quickly and works without the
extra. The same drawing gives the same text.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from remoting.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "DASHES",
    "FAINT",
    "HEAT",
    "INK",
    "MARKERS",
    "NARROW",
    "PAPER",
    "SERIES",
    "WIDE",
    "Chart",
    "Draw",
    "Size",
    "boxes",
    "drawn",
    "key_boxes",
    "new_figure",
    "quiet_axes",
    "style_of",
    "to_svg",
]

INK = "#010101"
FAINT = "#020202"
PAPER = "#020203"
SERIES = ("#030301", "#030302", "#030303", "#030304", "#030305", "#030306", "#030307", "#030308")
HEAT = ("#040401", "#040402", "#040403", "#040404", "#040405", "#040406", "#040407")
_VARIABLES = {
    INK: "var(--ink)",
    FAINT: "var(--rule)",
    PAPER: "var(--paper)",
    **{colour: f"var(--series-{n})" for n, colour in enumerate(SERIES)},
    **{colour: f"var(--heat-{n})" for n, colour in enumerate(HEAT)},
}
_SHORTER = re.compile(r"(\d+\.\d\d)\d+")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
DASHES: tuple[Any, ...] = (
    "-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 3)), (0, (9, 2)), (0, (1.2, 3)),
    (0, (6, 1.5, 1.2, 1.5, 1.2, 1.5)),
)  # fmt: skip
"""Line styles by number, as matplotlib takes them: whole, dashed, dotted, dash-dotted and so on."""


@dataclass(frozen=True, slots=True)
class Size:
    """What a chart is drawn for: its name in the style sheet, width in inches, how many panels stand in a row,
    and how many letters a name may have."""

    name: str
    width_in: float
    panels: int
    letters: int

    def short(self, name: str) -> str:
        """A name that fits into a legend or over a panel; the middle of a long one is left out.

        Control characters and marks of writing direction become escapes; a leading ``_`` would hide it from matplotlib.
        """
        name = printable(name)
        name = f"\u00a0{name}" if name.startswith("_") else name
        if len(name) <= self.letters:
            return name
        head = (self.letters - 1) // 2
        return f"{name[:head]}…{name[len(name) - (self.letters - 1 - head) :]}"


WIDE = Size("wide", 7.4, 2, 40)
NARROW = Size("narrow", 3.7, 1, 24)

Draw = Callable[[Size], "Figure"]


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture of a page: how to draw it, its title, and its text for readers who cannot see it."""

    key: str
    title: str
    says: str
    draw: Draw


def _context() -> AbstractContextManager[None]:
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "font.family": ["DejaVu Sans"],
        "font.size": 8,
        "axes.titlesize": 8.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": 8,
        "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5,
        "legend.fontsize": 7.5,
        "legend.frameon": False,
        "legend.handlelength": 3.2,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.linewidth": 0.5,
        "lines.linewidth": 1.5,
        "lines.markersize": 4,
        "path.simplify": False,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
        "text.parse_math": False,
        "axes.unicode_minus": False,
        "grid.color": FAINT,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    }
    context: AbstractContextManager[None] = mpl.rc_context(settings)
    return context


def new_figure(size: Size, height_in: float) -> Figure:
    """Return an empty figure of this size, whose layout avoids overlaps."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(size.width_in, height_in), layout="constrained")
    figure.set_layout_engine("constrained", wspace=0.07, hspace=0.07)
    return figure


def quiet_axes(axes: Axes, *, grid: str = "both") -> None:
    """Give axes thin lines, and a grid along ``grid`` only ("x", "y" or "both")."""
    for spine in axes.spines.values():
        spine.set_linewidth(0.6)
    axes.tick_params(which="major", width=0.6, length=3)
    axes.tick_params(which="minor", width=0.4, length=2)
    if grid != "both":
        axes.grid(False)
        axes.grid(True, axis="x" if grid == "x" else "y")


def boxes(axes: Axes, corners: Iterable[tuple[float, float, float, float]], colour: str) -> None:
    """Fill rectangles (left, bottom, right, top) with one colour, as one shape: small in the page, sharp in print."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    points: list[tuple[float, float]] = []
    codes: list[Any] = []
    for left, bottom, right, top in corners:
        points += [(left, bottom), (right, bottom), (right, top), (left, top), (left, bottom)]
        codes += [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    if points:
        axes.add_patch(PathPatch(Path(points, codes), facecolor=colour, edgecolor="none", linewidth=0))


def key_boxes(figure: Figure, names: Sequence[tuple[str, str]], title: str, columns: int) -> None:
    """Put a legend of filled boxes above the axes: (colour, name) each."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, edgecolor="none", label=name) for colour, name in names]
    figure.legend(
        handles=handles, title=title, loc="outside upper left", ncols=columns, handlelength=1.2, alignment="left"
    )


def style_of(number: int) -> dict[str, Any]:
    """Return colour, line style and marker of the series with that number; all three differ from its neighbours'."""
    return {
        "color": SERIES[number % len(SERIES)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def to_svg(figure: Figure, key: str, title: str, says: str) -> str:
    """Return a figure as one <svg> element for a page: named ids, theme colours, a title and a description.

    ``key`` must be unique on the page: it begins every id of the element.
    """
    import matplotlib as mpl

    stream = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": key}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{key}-', text)
    text = text.replace('href="#', f'href="#{key}-').replace("url(#", f"url(#{key}-")
    text = re.sub(r"(fill|stroke): (#0[1-4]0[1-4]0[1-8])", lambda m: f"{m[1]}: {_VARIABLES[m[2]]}", text)
    text = re.sub(r'\b(fill|stroke)="(#0[1-4]0[1-4]0[1-8])"', lambda m: f'style="{m[1]}: {_VARIABLES[m[2]]}"', text)
    text = re.sub(r'(?<=\bd=")[^"]+', lambda m: _SHORTER.sub(r"\1", m[0]), text)
    title, says = (escape(printable(words)) for words in (title, says))
    width, height = (float(v) * 72 for v in figure.get_size_inches())
    head = (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{key}-title {key}-desc" '
        f'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{key}-title">{title}</title><desc id="{key}-desc">{says}</desc>'
    )
    return head + text[text.index(">") + 1 :].strip()


def drawn(chart: Chart) -> str:
    """Return the chart as HTML: one SVG for wide pages and paper, one for phones."""
    parts = []
    for size in (WIDE, NARROW):
        with _context(), warnings.catch_warnings():
            # The browser draws the letters; matplotlib only estimates their width, so it need not have them.
            warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
            warnings.filterwarnings("ignore", "Matplotlib currently does not support", UserWarning)
            svg = to_svg(chart.draw(size), f"{chart.key}-{size.name}", chart.title, chart.says)
        parts.append(f'<div class="{size.name}">{svg}</div>')
    return "\n".join(parts)
