"""The last lines of a run on the terminal: the verdict, and a line for each thing that is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.figures.text import limit_text, percent
from bench.lateness.results.compare import differences, in_words
from bench.lateness.results.receipts import receipts_in_words
from bench.lateness.results.result import Result
from bench.lateness.summary import verdict

__all__ = ["last_lines"]


def last_lines(summary: dict[str, Any], out: Path, before: Result | None, empty: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines, the verdict first; ``before`` is the result of ``--baseline``.

    ``empty``: files of ``--received`` without a receipt.
    """
    yield verdict(summary)
    target = summary["target"]
    if not target["holds"]:
        wanted = f"{target['share'] * 100:g}\u00a0% within {limit_text(target['limit_ms'])}"
        found = percent(round(target["found"] * 10**12), 10**12)
        yield f"target missed: {wanted} is wanted, {found} came in time".replace("\u00a0", " ")
    for line in in_words(differences(before.summary, summary), brief=True) if before else ():
        yield f"against {before.folder if before else ''}: {line}"
    for path in empty:
        yield f"no receipt in {path}: a file of `timewheel consume --record` is expected"
    end = summary["total"]["end_to_end"]
    yield from receipts_in_words(end, brief=True) if end else ()
    damaged = sum(source["damaged_count"] for source in summary["sources"])
    if damaged:
        yield f"{damaged} damaged region{'s' if damaged > 1 else ''}, see {out / 'summary.json'}"
    for source in summary["sources"]:
        for text in source["not_known"]:
            yield f"not known of {source['name']}: {text}"
    for item in summary["expectations"]:
        found = "nothing" if item["value"] is None else f"{'at least ' if item['at_least'] else ''}{item['value']}"
        yield f"{'holds' if item['holds'] else 'FAILS'}: {item['text']} (found {found})"
