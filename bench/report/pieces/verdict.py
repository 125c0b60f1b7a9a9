"""The head of the lateness page: counts, percentiles, shares within limits, expectations; for all and by source."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bench.figures.text import count, lateness_text, limit_text, milliseconds, percent, utc
from bench.lateness.results.receipts import receipts_in_words
from bench.lateness.results.result import COUNTS, QUANTILES, WITHIN_MS
from bench.report.charts.bars import Limit, within_chart
from bench.report.charts.ccdf import DrawnCurve
from bench.report.pieces.page import Html, Tile, figure, joined, note, table, tiles, verdict

__all__ = ["compared", "headline", "headline_tiles", "read_from", "verdict_section"]

_QUANTILE_NAMES = (*QUANTILES, "max")
_A_TIME, _A_SHARE = re.compile(r"(e2e\.)?(p\d|max)"), re.compile(r"(e2e\.)?within")
_MEANS = {
    "p50": "half are not later", "p90": "9 of 10 are not later", "p99": "99 of 100 are not later",
    "p99.9": "999 of 1,000 are not later", "p99.99": "9,999 of 10,000 are not later", "max": "the latest of all",
}  # fmt: skip
_AT_LEAST = {
    "p50": "at least; half are so late", "p90": "at least; 1 of 10 is so late", "p99": "at least; 1 of 100 is so late",
    "p99.9": "at least; 1 of 1,000 is so late", "p99.99": "at least; 1 of 10,000 is so late",
    "max": "at least; it still waits",
}  # fmt: skip
"""Of a lower bound: nobody knows how late the others are at most."""
_BAD_ABOVE_ZERO = {"overdue", "lost", "repeated", "early"}


def headline(summary: Mapping[str, Any]) -> Html:
    """Return the verdict: in bold what is wrong, or that the target is met; then the figures in a few sentences.

    Bad: an expectation or the target is missed, or a message was lost or early. Wary: one was repeated or is overdue.
    """
    total, target = summary["total"], summary["target"]
    failed = [e for e in summary["expectations"] if not e["holds"]]
    wrong = [f"{count(total[name])} {name}" for name in ("lost", "early", "repeated", "overdue") if total[name]]
    words = f"{count(total['delivered'])} of {count(total['sent'])} delayed messages delivered"
    p99 = total["percentiles"]["p99"]
    if p99 is not None:
        bound = "one of 100 at least" if "p99" in total["at_least"] else "99 of 100 at most"
        words += f", {bound} {lateness_text(p99)} late"
    words += f"; {', '.join(wrong)}." if wrong else "; none lost, early, repeated or overdue."
    if summary["expectations"]:
        held = len(summary["expectations"]) - len(failed)
        words += f" Expectations: {held} of {len(summary['expectations'])} hold."
    if not total["sent"]:
        words = "No delayed message was found in what was read." + words[words.index(".") + 1 :]
    if target["found"] is not None:
        words += f" Target: {_target(target)}, {'met' if target['holds'] else 'MISSED'} ({_share(target['found'])})."
    bad = ["target missed"] if not target["holds"] else []
    bad += [f"{count(len(failed))} expectation{'s' if len(failed) > 1 else ''} missed"] if failed else []
    bad += [f"{count(total[name])} {name}" for name in ("lost", "early") if total[name]]
    if bad:
        return verdict(_capital(", ".join(bad)), words, "verdict bad")
    if not total["sent"]:
        return verdict("Nothing to judge", words, "verdict")
    met = "Target met" if target["found"] is not None else "Nothing was due yet"
    if wrong:
        return verdict(f"{met}, but {', '.join(wrong)}", words, "verdict wary")
    return verdict(met, words, "verdict")


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def headline_tiles(summary: Mapping[str, Any]) -> Html:
    """Return the percentiles and the share within the target as large tiles."""
    total, target = summary["total"], summary["target"]
    shown = [
        Tile(
            name,
            "-" if (ms := total["percentiles"].get(name)) is None else lateness_text(ms).replace(" ", "\u00a0"),
            "bad" if ms is not None and ms > target["limit_ms"] and name != "max" else "",
            _remark(name, ms, name in total["at_least"]),
        )
        for name in _QUANTILE_NAMES
    ]  # fmt: skip
    if target["found"] is not None:
        within = f"within {limit_text(target['limit_ms'])}".replace(" ", "\u00a0")
        style = "good" if target["holds"] else "bad"
        shown.append(Tile(within, _share(target["found"]), style, f"target {target['share'] * 100:g}\u00a0%"))
    return tiles(shown, "tiles large")


def _remark(name: str, ms: int | None, bound: bool) -> str:
    """The meaning of a percentile, or its milliseconds if the tile shows a coarser unit."""
    if ms is None:
        return ""
    if abs(ms) >= 10_000:
        return f"{'at least, ' if bound else ''}{ms:,}\u00a0ms"
    return _AT_LEAST[name] if bound else _MEANS[name]


def verdict_section(
    summary: Mapping[str, Any], curves: Mapping[str, DrawnCurve], received: Mapping[str, DrawnCurve]
) -> Html:
    """Return the counts, the percentiles, the shares within limits and the expectations."""
    total = summary["total"]
    figures = [Tile(name, count(total[name]), _style(name, total[name])) for name in COUNTS if name in total]
    columns = _columns(summary)
    parts = [tiles(figures)]
    if total.get("end_to_end"):
        end = total["end_to_end"]
        matched = end["received"] + end["repeated"]
        parts.append(note(f"Consumers recorded {count(matched)} receipts of deliveries in these logs, "
                          f"{count(end['repeated'])} of them repeats, {count(end['early'])} early."))  # fmt: skip
        parts += [note(f"{_capital(line)}.") for line in receipts_in_words(end)]
    if summary["expectations"]:
        parts.append(_expected(summary["expectations"]))
    if len(columns) > 1:
        names = ("", *(name for name, _ in columns))
        rows = list(zip(_QUANTILE_NAMES, *(_percentiles(found) for _, found in columns), strict=True))
        limits = [limit_text(limit) for limit in WITHIN_MS]
        within = list(zip(limits, *(_within(found) for _, found in columns), strict=True))
        parts += [
            table("Lateness of what was due, percentiles by nearest rank", names, rows),
            table("Share delivered within", names, within),
        ]
    parts.append(
        figure(
            _within_chart("within", curves, summary["target"]["share"]),
            f"Each step to the right is ten times fewer messages beyond the limit. The dashed line is the target, "
            f"{_target(summary['target'])}.",
            "Nothing was delivered: no share to show.",
        )
    )
    if any(curve.delivered for curve in received.values()):
        chart = _within_chart("within-received", received, summary["target"]["share"])
        parts.append(figure(chart, "The same end to end, at the consumers."))
    if summary.get("since_ms") is not None or summary.get("until_ms") is not None:
        parts.append(note(f"Chosen by due time: from {utc(summary.get('since_ms'))} to before "
                          f"{utc(summary.get('until_ms'))}. What is due outside is not counted."))  # fmt: skip
    return joined(parts)


def _columns(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Name and figures of each column of the verdict: each source if there are several, then all together."""
    sources, total = summary["sources"], summary["total"]
    several = len(sources) > 1
    columns = [(source["name"], source) for source in sources] if several else []
    columns.append(("all together" if several else "broker lateness", total))
    if total.get("end_to_end"):
        columns.append(("all, end to end" if several else "end-to-end lateness", total["end_to_end"]))
    return columns


def _style(name: str, value: int) -> str:
    return "bad" if name in _BAD_ABOVE_ZERO and value else ""


def _percentiles(counts: Mapping[str, Any]) -> list[str]:
    bounds = counts["at_least"]
    return [("at least " if name in bounds else "") + _ms(counts["percentiles"].get(name)) for name in _QUANTILE_NAMES]


def _ms(value: int | None) -> str:
    return "-" if value is None else milliseconds(value)


def _within(counts: Mapping[str, Any]) -> list[str]:
    return [_share(counts["within"].get(str(limit))) for limit in WITHIN_MS]


def _share(value: float | None) -> str:
    return "-" if value is None else percent(round(value * 10**12), 10**12)


def _within_chart(key: str, curves: Mapping[str, DrawnCurve], target: float) -> Any:
    limits = {source: [_limit(limit, curve) for limit in WITHIN_MS] for source, curve in curves.items()}
    return within_chart(key, "Share delivered within a limit", limits, target)


def _limit(limit_ms: int, curve: DrawnCurve) -> Limit:
    """How many were within a limit. A message that has waited longer has missed it; others that wait do not count."""
    missed = curve.overdue.total - curve.overdue.at_most(limit_ms)
    return Limit(limit_ms, curve.delivered.at_most(limit_ms), curve.delivered.total + missed)


def _target(target: Mapping[str, Any]) -> str:
    limit = limit_text(target["limit_ms"]).replace(" ", "\u00a0")
    return f"{target['share'] * 100:g}\u00a0% within {limit}"


def _expected(expectations: Sequence[Mapping[str, Any]]) -> Html:
    rows = [(e["text"], _found(e), "holds" if e["holds"] else "FAILS") for e in expectations]
    return table("Expectations", ("expected", "found", "verdict"), rows)


def _found(expectation: Mapping[str, Any]) -> str:
    """A figure in the unit of its expectation; results of earlier versions do not say whether it is a lower bound."""
    text, value = expectation["text"], expectation["value"]
    if value is None:
        return "-"
    if _A_TIME.match(text):
        return f"{'at least ' if expectation.get('at_least') else ''}{milliseconds(int(value))}"
    return _share(value) if _A_SHARE.match(text) else f"{value:,}"


def read_from(sources: Sequence[Mapping[str, Any]]) -> Html:
    """Return a table of what was read, a column for each source."""
    rows: list[list[str]] = [
        ["kind", *(s["kind"] for s in sources)],
        ["records in its log", *(count(s["records"]) for s in sources)],
        ["first stored", *(utc(s["first_store_ms"]) for s in sources)],
        ["last stored", *(utc(s["last_store_ms"]) for s in sources)],
        ["hot: due in one second", *(f"{count(s['hot_from'])} or more" for s in sources)],
        ["clock set back", *(f"{count(s['clock_steps_back'])} times" for s in sources)],
        ["read from", *(", ".join(s["paths"]) for s in sources)],
    ]
    names = ("", *(s["name"] for s in sources))
    return table("What was read", names, rows, words=tuple(range(1, len(names)))) if sources else Html("")


def compared(sources: Sequence[Mapping[str, Any]]) -> Html:
    """Return a table of counts, percentiles and shares, a column for each source."""
    late = [_percentiles(source) for source in sources]
    rows: list[list[str]] = [
        *([name, *(count(s[name]) for s in sources)] for name in COUNTS),
        *([f"lateness {name}", *(row[place] for row in late)] for place, name in enumerate(_QUANTILE_NAMES)),
        *([f"within {limit_text(n)}", *(_share(s["within"].get(str(n))) for s in sources)] for n in WITHIN_MS),
    ]
    if any(s.get("end_to_end") for s in sources):
        ends = [(s.get("end_to_end") or {"percentiles": {}})["percentiles"] for s in sources]
        rows += [
            [f"end to end {name}", *(_ms(found.get(name)) for found in ends)]
            for name in _QUANTILE_NAMES
        ]  # fmt: skip
    return table("", ("", *(s["name"] for s in sources)), rows)
