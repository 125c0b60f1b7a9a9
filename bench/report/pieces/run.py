"""The section of a lateness page about its run: command line, host, time zone, versions, sources, files beside it."""

from __future__ import annotations

from bench.figures.text import utc
from bench.lateness.results.hdr import ENDING
from bench.lateness.results.result import HISTOGRAMS, SUMMARY, Result
from bench.report.pieces.page import Html, joined, links, note, table
from bench.report.pieces.verdict import read_from

__all__ = ["about_run"]


def about_run(result: Result) -> Html:
    """Return the section; results of older runs do not have their command."""
    summary = result.summary
    run = summary.get("run") or {}
    rows = [(name, str(run[key])) for name, key in _SHOWN if run.get(key)]
    if run.get("versions"):
        rows.append(("versions", ", ".join(f"{name} {version}" for name, version in run["versions"].items())))
    rows += [("read", utc(summary["as_of_ms"])), ("made", utc(summary["made_ms"]))]
    files = [(SUMMARY, f"{SUMMARY}: every figure of this page")]
    files += [(f"{HISTOGRAMS}/{name}.parquet", f"{HISTOGRAMS}/{name}.parquet") for name in result.histograms]
    found = sorted(path.name for path in (result.folder / HISTOGRAMS).glob(f"*{ENDING}"))
    files += [(f"{HISTOGRAMS}/{name}", f"{HISTOGRAMS}/{name}: percentiles in HdrHistogram's format") for name in found]
    return joined([
        table("", ("", ""), rows, words=(1,)),
        read_from(summary["sources"]),
        note("Beside this page, as long as it stays in its folder:"),
        links(files),
    ])  # fmt: skip


_SHOWN = (("command", "command"), ("engine", "engine"), ("host", "host"), ("time zone there", "time_zone"))
