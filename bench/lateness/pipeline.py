"""A run: from sources to a result folder. `bench.lateness.engines.job` describes the task, an engine does the work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.lateness.counting.latest import latest_messages
from bench.lateness.counting.minutes import coarser, last_minute_of
from bench.lateness.counting.tables import take_apart
from bench.lateness.engines.job import Engine, Job, Receipts, look_at_delay_stores, look_at_logs
from bench.lateness.logs.schemas import GAP, STATISTICS
from bench.lateness.logs.sources import LogSource, find_sources
from bench.lateness.logs.storage import StorageError
from bench.lateness.results.hdr import percentile_files
from bench.lateness.results.order import in_order
from bench.lateness.results.result import CELLS, HISTOGRAMS, RECEIVED, SUMMARY
from bench.lateness.state.state import StateFolder
from bench.lateness.summary import Seen, make_summary

__all__ = [
    "Engine",
    "Job",
    "LogSource",
    "find_sources",
    "look_around",
    "look_at_delay_stores",
    "run_job",
    "write_result",
]

Say = Callable[[str], None]


def run_job(engine: Engine, job: Job, say: Say, state: StateFolder | None = None) -> dict[str, Any]:
    """Run a job, write its result folder, and return the summary. ``state``: what earlier runs have counted.

    Raises StateError, StorageError, StoreError, and the errors of the engine.
    """
    look_around(job, state)
    if state is not None:
        state.narrow(job)
    count = len(job.plans)
    what = f"reading {job.log_bytes / 1e6:,.0f} MB of {count} log{'s' if count != 1 else ''}"
    waiting = job.waiting_bytes
    say(what + (f", {waiting / 1e6:,.0f} MB of messages that wait" if waiting >= 500_000 else ""))
    assert job.as_of_ms is not None
    names = [source.name for source in job.sources]
    whole = engine.sums(job) if state is None else state.count(engine, job)
    said = {} if state is None else state.said()
    last_ms = last_minute_of(whole, job.as_of_ms)
    parts = take_apart(coarser(whole, last_ms), names, job.tables)
    tables = parts.tables
    seen = Seen(
        counts=parts.counts,
        notes=[row for row in parts.notes if row["stage"] in (STATISTICS, GAP)],
        hot=parts.hot,
        latest=parts.latest,
        cell_s=parts.cell_s,
        late=latest_messages(parts.late, job.sources, job.plans, parts.topics, said, job.delay_stores or ()),
    )
    received: Receipts | None = None
    if job.received:
        say("joining what consumers saw")
        received = engine.receipts(job, _hosts(seen.notes, len(names)))
        more = take_apart(coarser(received.sums, last_ms), names, job.tables, parts.topics)
        tables |= {name + RECEIVED: table for name, table in more.tables.items() if name not in CELLS}
        seen.latest_received = more.latest
    summary = make_summary(job, job.as_of_ms, seen, tables, received)
    write_result(job.out, summary, tables)
    return summary


def look_around(job: Job, state: StateFolder | None) -> None:
    """Fix what there is to read, unless that was done before. Raises StorageError or StoreError."""
    if job.plans:
        return
    if state is not None:
        job.counted_to = [state.end_of(number) for number in range(len(job.sources))]
    look_at_logs(job)


def _hosts(notes: Sequence[dict[str, Any]], sources: int) -> dict[int, set[str]]:
    """The store hosts in the records of each source."""
    hosts: dict[int, set[str]] = {number: set() for number in range(sources)}
    for row in notes:
        if row["stage"] == STATISTICS:
            hosts[row["source"]] |= set(json.loads(row["text"])["hosts"])
    return hosts


def write_result(out: Path, summary: dict[str, Any], tables: dict[str, Any]) -> None:
    """Write the result folder: the tables first, the summary last, each replaced as a whole. Raises StorageError."""
    try:
        _write(out, summary, tables)
    except OSError as error:
        raise StorageError(f"--out {out}: the result cannot be written ({error.strerror or error})") from error


def _write(out: Path, summary: dict[str, Any], tables: dict[str, Any]) -> None:
    import pyarrow.parquet as pq

    fresh, place = out / f".{HISTOGRAMS}.new", out / f".{SUMMARY}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        for name, table in tables.items():
            pq.write_table(in_order(table), fresh / f"{name}.parquet")
        for name, text in percentile_files(tables, [source["name"] for source in summary["sources"]]).items():
            (fresh / name).write_text(text, encoding="ascii")
        # Before the tables are replaced: a summary of another run beside them would be wrong.
        place.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(out / HISTOGRAMS, ignore_errors=True)
        fresh.rename(out / HISTOGRAMS)
        place.rename(out / SUMMARY)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        place.unlink(missing_ok=True)
        raise
