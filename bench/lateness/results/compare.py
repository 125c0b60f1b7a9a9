"""Compares two results figure by figure: what is later, earlier, more or fewer than in the run before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from bench.figures.text import count, lateness_text, limit_text, percent
from bench.lateness.results.result import COUNTS, QUANTILES, WITHIN_MS

__all__ = ["Difference", "differences", "in_words"]

_WORSE_IF_MORE = ("overdue", "lost", "repeated", "early")
_BRIEF = ("p50", "p99", "max", *_WORSE_IF_MORE)
_TIMES_FROM = 2
"""From this factor on, the words say how many times as late."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two runs: both as text, and the change in words; ``worse``: None if neither worse nor better."""

    name: str
    before: str
    now: str
    words: str = ""
    worse: bool | None = None


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Compare two summaries: the target, percentiles, shares and counts of all their sources together."""
    old, new = before["total"], now["total"]
    found = [_late(name, old, new) for name in (*QUANTILES, "max")]
    if (before["target"]["share"], before["target"]["limit_ms"]) == (now["target"]["share"], now["target"]["limit_ms"]):
        name = f"within {limit_text(now['target']['limit_ms'])} (target)"
        found.append(_share(name, before["target"]["found"], now["target"]["found"]))
    found += [_share(f"within {n:,} ms", old["within"].get(str(n)), new["within"].get(str(n))) for n in WITHIN_MS]
    return found + [_count(name, old[name], new[name]) for name in COUNTS]


def in_words(found: list[Difference], brief: bool = False) -> list[str]:
    """Sentences that say what is worse and what is better; a single one if neither is.

    ``brief``: of percentiles and shares only p50, p99, max and the target.
    """
    found = [one for one in found if not brief or one.name in _BRIEF or one.name.endswith("(target)")]
    lines = []
    for worse, head in ((True, "Worse"), (False, "Better")):
        some = [f"{one.name} {one.words}" for one in found if one.worse is worse]
        if some:
            lines.append(f"{head}: {'; '.join(some)}.")
    return lines or ["No percentile, share or fault differs."]


def _late(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Difference:
    before, now = old["percentiles"].get(name), new["percentiles"].get(name)
    texts = [_ms(value, name in side["at_least"]) for value, side in ((before, old), (now, new))]
    if before is None or now is None or before == now:
        return Difference(name, texts[0], texts[1])
    later = now > before
    words = f"{lateness_text(abs(now - before))} {'later' if later else 'earlier'}"
    bounds = [name in side["at_least"] for side in (old, new)]
    if bounds[0] != bounds[1]:  # the lateness of the other run is exact, that of this one is larger
        grows = bounds[1] == later
        return Difference(
            name, texts[0], texts[1], f"at {'least' if grows else 'most'} {words}", later if grows else None
        )
    low, high = sorted((before, now))
    if low > 0 and high >= _TIMES_FROM * low:
        words += f" ({high / low:,.{0 if high >= 10 * low else 1}f} times {'as late' if later else 'less late'})"
    return Difference(name, texts[0], texts[1], words, later)


def _ms(value: int | None, at_least: bool) -> str:
    return "-" if value is None else f"{'at least ' if at_least else ''}{lateness_text(value)}"


def _share(name: str, before: float | None, now: float | None) -> Difference:
    texts = [_percent(value) for value in (before, now)]
    if before is None or now is None or before == now:
        return Difference(name, texts[0], texts[1])
    points = f"{Decimal(f'{abs(now - before) * 100:.3g}'):f}"  # never as a power of ten
    words = f"{points} point{'s' if points != '1' else ''} {'less' if now < before else 'more'}"
    return Difference(name, texts[0], texts[1], words, now < before)


def _percent(value: float | None) -> str:
    return "-" if value is None else percent(round(value * 10**12), 10**12)


def _count(name: str, before: int, now: int) -> Difference:
    texts = count(before), count(now)
    if before == now:
        return Difference(name, *texts)
    words = f"{count(abs(now - before))} {'more' if now > before else 'fewer'}"
    return Difference(name, *texts, words, now > before if name in _WORSE_IF_MORE else None)
