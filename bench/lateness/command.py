"""``timewheel lateness``: how late every delayed message of some stores was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from bench.lateness.about import about_run
from bench.lateness.checking import (
    check_baseline,
    check_bounds,
    check_master,
    check_memory,
    check_rounds,
    check_storage,
    executors,
    pairs,
    task_bytes,
)
from bench.lateness.engines.ending import ends_on_sigterm, stop_event
from bench.lateness.engines.job import Engine
from bench.lateness.engines.local_engine import LOCAL_BYTES_MAX, LocalEngine
from bench.lateness.engines.session import JavaMissingError, SparkStartError, is_brief, spark_session
from bench.lateness.logs.packing import parts_for
from bench.lateness.logs.reading import APACHE_LEVELS, DamagedLogError, parse_levels
from bench.lateness.logs.receipt_lines import without_receipts
from bench.lateness.logs.s3a import hadoop_settings, storage_of
from bench.lateness.logs.spill_files import SpillMovedError
from bench.lateness.logs.storage import StorageError, without_login
from bench.lateness.options import EXAMPLES, WORDS, ExpectType, InstantType, TablesType, TargetType, Words
from bench.lateness.pipeline import Job, find_sources, look_around, run_job
from bench.lateness.places import alone_in, check_here, check_places, check_received
from bench.lateness.reading_progress import ReadingProgress, covering, progress_for, watched
from bench.lateness.results.result import SUMMARY, Result
from bench.lateness.saying import last_lines
from bench.lateness.state.rounds import check_state, repeat
from bench.lateness.state.state import StateFolder
from bench.lateness.summary import verdict
from bench.report import ReportError, write_report
from remoting.printable import printable
from store.disk.errors import StoreError

__all__ = ["lateness_command", "our_error"]

Found = TypeVar("Found")

_TRIES = 3
_STARTS = 10
_SLOW = "Python worker failed to connect back"
"""Spark's words for a Python process that took more than 10 s to start, which no setting changes."""
_OF_SPARK = ("master", "memory", "settings", "executor_memory", "executor_cores")
"""Options that only Spark understands. With one of them, Spark is used."""
_MOVED = ("SpillMovedError", "LogMovedError")
_OUR_ERRORS = ("DamagedLogError", *_MOVED, "NoStoreError", "StorageError", "StoreCorruptError")


@click.command(
    "lateness", cls=Words, epilog=EXAMPLES, short_help="Count from CommitLogs how late every delayed message was."
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for the result.")
@click.option("--name", "names", multiple=True, help="Name of a source, in their order. Repeatable.")
@click.option("--received", multiple=True, metavar="FILE", help="Messages that a consumer recorded (consume --record).")
@click.option("--by", type=TablesType(), default=(), help="Only these groupings (topic is always one).  [default: all]")
@click.option(
    "--since", "since_ms", type=InstantType(), help="Only messages due at or after this time (ISO 8601, or epoch ms)."
)
@click.option("--until", "until_ms", type=InstantType(), help="Only messages due before this time.")
@click.option(
    "--as-of",
    "as_of_ms",
    type=InstantType(),
    help="Messages still pending are overdue if due before this time.  [default: now]",
)
@click.option(
    "--expect",
    "expectations",
    type=ExpectType(),
    multiple=True,
    help="Exit with status 1 unless this holds: 'p99 <= 10ms'.",
)
@click.option(
    "--target",
    type=TargetType(),
    default="99.9% within 1s",
    show_default=True,
    help="Service level for the verdict and its colour.",
)
@click.option(
    "--baseline", type=click.Path(path_type=Path), metavar="DIR", help="Compare with the earlier result in this folder."
)
@click.option("--levels", default=APACHE_LEVELS, show_default=True, help="messageDelayLevel of the brokers.")
@click.option("--check-crc", is_flag=True, help="Also check the CRC of every body.")
@click.option("--fail-on-damage", is_flag=True, help="Fail at a damaged region instead of counting it.")
@click.option("--storage", default="", metavar="JSON", help="Options for the file system behind a URI.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "local", "spark"]),
    default="auto",
    show_default=True,
    help=f"auto: local processes up to {LOCAL_BYTES_MAX >> 30} GB of log, Spark above that.",
)
@click.option("--master", default="local[*]", show_default=True, help="Spark master.")
@click.option("--spark", "settings", multiple=True, metavar="KEY=VALUE", help="A setting for Spark. Repeatable.")
@click.option("--memory", default="2g", show_default=True, help="Memory of the driver (with local: of everything).")
@click.option("--executor-memory", metavar="SIZE", help="Memory of an executor, with its Python workers.")
@click.option("--executor-cores", type=click.IntRange(1, 1_024), help="Number of tasks that an executor runs at once.")
@click.option(
    "--split-mb",
    type=click.IntRange(1, 1 << 20),
    help="MiB of log that one task reads.  [default: by the size of the log]",
)
@click.option(
    "--state",
    metavar="DIR",
    help="Keep the sums of closed segments there, so that the next run need not read them again.",
)
@click.option("--follow", "follows", is_flag=True, help="Continue as the logs grow, until Ctrl-C.")
@click.option(
    "--refresh", type=click.FloatRange(0.1, 604_800), default=10.0, show_default=True, help="Seconds between results."
)
@click.option("--rounds", type=click.IntRange(1), help="With --follow: end after this number of results.")
@click.option("--quiet", is_flag=True, help="Do not report progress.")
def lateness_command(
    sources: tuple[str, ...],
    out: Path,
    names: tuple[str, ...],
    received: tuple[str, ...],
    by: tuple[str, ...],
    since_ms: int | None,
    until_ms: int | None,
    baseline: Path | None,
    levels: str,
    storage: str,
    engine: str,
    master: str,
    settings: tuple[str, ...],
    memory: str,
    executor_memory: str | None,
    executor_cores: int | None,
    split_mb: int | None,
    state: str | None,
    follows: bool,
    refresh: float,
    rounds: int | None,
    quiet: bool,
    **of_a_job: Any,
) -> None:
    """Read the logs of SOURCE (a store, its commitlog folder, or a URI) and count how late every delayed message was.

    Exit status 0: all expectations hold. 1: one does not, or a source cannot be read. 2: wrong usage.
    """
    say = _quiet if quiet else _say
    resources = click.get_current_context().with_resource(ExitStack())
    with _in_a_line(), ends_on_sigterm():
        _check_words(levels, master, storage)
        _check_together(follows, refresh, state, since_ms, until_ms, received)
        received = check_received(received)
        given = executors(executor_memory, executor_cores) | pairs(settings)
        memory_of_task = task_bytes(memory := check_memory(memory), given, master)
        found = _with_retries(partial(find_sources, sources, names, levels, storage, hadoop := hadoop_settings(given)))
        before = check_baseline(baseline, out)
        check_places(out, state, found, received, follows)
        resources.enter_context(alone_in(out))
        jobs = of_a_job | {"received": received, "since_ms": since_ms, "until_ms": until_ms}
        jobs |= {"tables": by, "task_bytes": memory_of_task, "split_bytes": (split_mb or 0) << 20}
        kept = resources.enter_context(StateFolder(state, storage_of(state, storage, hadoop), found)) if state else None
        first = Job(found, out, **jobs)
        _with_retries(lambda: look_around(first, kept))
        size = first.bytes_to_read
        local = _is_local(engine, size, follows and not kept, received)
        empty = without_receipts(received)
        first.about = _about("local" if local else "spark", before)
        make = _job_maker(first, jobs, again=follows and not kept)
        runs = Runs(make, kept, refresh, rounds, out, say, progress_for(quiet))
        if local:
            summary = _run(LocalEngine(counting=runs.progress.counting), runs, follows)
        else:
            say("starting Spark")
            brief, partitions = is_brief(master, size, follows), parts_for(size, memory_of_task)
            with spark_session(master, memory=memory, partitions=partitions, settings=given, brief=brief) as spark:
                summary = _on_spark(spark, runs, follows)
    _finish(summary, out, before, empty)


def _check_words(levels: str, master: str, storage: str) -> None:
    """Raise ValueError if an option with a format of its own is wrong."""
    check_storage(storage)
    parse_levels(levels)
    check_master(master)


def _check_together(
    follows: bool,
    refresh: float,
    state: str | None,
    since_ms: int | None,
    until_ms: int | None,
    received: Sequence[str],
) -> None:
    """Raise ValueError if options do not go together."""
    check_rounds(follows, refresh, _given(("refresh", "rounds")))
    check_bounds(since_ms, until_ms)
    check_state(state, since_ms, until_ms, received)


def _given(names: Sequence[str]) -> list[str]:
    """Those of the options that were given on the command line, as they are written there."""
    context = click.get_current_context()
    spoke = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    return ["--spark" if name == "settings" else f"--{name.replace('_', '-')}" for name in spoke]


@contextmanager
def _in_a_line() -> Iterator[None]:
    """Turn our errors into one line that ends the command."""
    try:
        yield
    except (JavaMissingError, SparkStartError, StorageError, StoreError) as error:
        raise click.ClickException(without_login(str(error))) from None
    except ValueError as error:
        raise click.UsageError(without_login(str(error))) from None


def _job_maker(first: Job, values: dict[str, Any], again: bool) -> Callable[[], Job]:
    """Return a function that makes jobs: first the one that was looked at already, then new ones.

    ``again``: new ones only, because the run looks in an order of its own.
    """
    looked_at = [] if again else [first]

    def make() -> Job:
        return looked_at.pop() if looked_at else Job(first.sources, first.out, **values | {"about": first.about})

    return make


def _about(engine: str, before: Result | None) -> dict[str, Any]:
    words = click.get_current_context().meta[WORDS]
    return about_run(words, engine) | ({"baseline": str(before.folder)} if before else {})


def _finish(summary: dict[str, Any] | None, out: Path, before: Result | None, empty: Sequence[str]) -> None:
    """Print the verdict and end with its exit status. Without a summary the run was interrupted."""
    if summary is None:
        raise SystemExit(130)
    for line in last_lines(summary, out, before, empty):
        click.echo(printable(without_login(line)))
    raise SystemExit(0 if all(item["holds"] for item in summary["expectations"]) else 1)


def _told(out: Path, say: Callable[[str], None]) -> Callable[[dict[str, Any]], None]:
    def told(summary: dict[str, Any]) -> None:
        say(verdict(summary))
        _draw(out, _quiet)

    return told


def _say(text: str) -> None:
    click.echo(covering(printable(without_login(text))), err=True)


def _quiet(text: str) -> None:
    del text


def _is_local(engine: str, size: int, follows: bool, received: Sequence[str]) -> bool:
    """Whether this run needs no Spark: as requested, or if the log is small and no option for Spark was given."""
    spoke = _given(_OF_SPARK)
    if engine == "local" and (follows or spoke):
        raise ValueError(f"--engine local has no {'--follow' if follows else spoke[0]}: leave one of them out")
    local = engine == "local" or (engine == "auto" and size <= LOCAL_BYTES_MAX and not follows and not spoke)
    if local:
        check_here(received)
    return local


@dataclass(frozen=True, slots=True)
class Runs:
    """Everything but the engine that is needed to make results."""

    make: Callable[[], Job]
    state: StateFolder | None
    refresh: float
    rounds: int | None
    out: Path
    say: Callable[[str], None]
    progress: ReadingProgress

    def once(self, engine: Engine, at_once: bool) -> dict[str, Any]:
        """Make a result; ``at_once``: show the progress from the beginning. Passes on the errors of the engine."""
        job = self.make()
        look_around(job, self.state)
        with self.progress.telling(job.bytes_to_read, at_once):
            return run_job(engine, job, self.say, self.state)


def _run(engine: Engine, runs: Runs, follows: bool) -> dict[str, Any] | None:
    """Make one result, or with ``--state`` and ``--follow`` as many as requested."""

    first = [True]

    def once() -> dict[str, Any]:
        at_once = first.pop() if first else False
        return _with_retries(lambda: runs.once(engine, at_once))

    if follows:
        with stop_event() as stop:
            return repeat(once, runs.refresh, runs.rounds, _told(runs.out, runs.say), stop)
    summary = once()
    _draw(runs.out, runs.say)
    return summary


def _on_spark(spark: Any, runs: Runs, follows: bool) -> dict[str, Any] | None:
    from bench.lateness.engines.spark_engine import SparkEngine
    from bench.lateness.follow import follow

    if follows and runs.state is None:
        with stop_event() as stop, _unwrapped():
            return follow(spark, runs.make, runs.refresh, runs.rounds, _told(runs.out, runs.say), stop, _tries)
    with watched(spark.sparkContext.statusTracker(), runs.progress):
        return _run(SparkEngine(spark, say=runs.say), runs, follows)


def _with_retries(work: Callable[[], Found]) -> Found:
    """Do the work; repeat it if a live broker moved files meanwhile. Our errors are unwrapped from Spark's."""
    with _unwrapped():
        for left in reversed(range(_TRIES)):
            try:
                return work()
            except Exception as error:
                if not left or _tries(error) != _TRIES:
                    raise
    raise AssertionError("the last try answers or raises")


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Raise our errors instead of Spark's that they are wrapped in."""
    try:
        yield
    except Exception as error:
        ours = _ours(error)
        if ours is not None:
            raise (SpillMovedError if ours[0] == "SpillMovedError" else StorageError)(ours[1]) from None
        if _SLOW in str(error):
            text = f"Spark waits 10 s for a Python process to start, and {_STARTS} in a row took longer"
            raise click.ClickException(f"{text}: run it while the machine has less to do") from None
        raise


def _tries(error: Exception) -> int:
    """How many times in a row work may fail with this error; 0 if it is none that we know."""
    ours = _ours(error)
    if ours is not None:
        return _TRIES if ours[0] in _MOVED else 1
    return _STARTS if _SLOW in str(error) else 0


def _ours(error: Exception) -> tuple[str, str] | None:
    """(class name, text) of one of our errors, raised directly or wrapped in Spark's; None for any other error."""
    if isinstance(error, DamagedLogError | StorageError | StoreError):
        return type(error).__name__, without_login(str(error))
    return our_error(str(error))


def our_error(text: str) -> tuple[str, str] | None:
    """Find one of our errors, (class name, text), in the text of Spark's, which has the traceback of the worker."""
    for line in text.splitlines():
        head, separator, rest = line.strip().partition(": ")
        name = head.rpartition(".")[2]
        if separator and name in _OUR_ERRORS:
            return name, rest
    return None


def _draw(out: Path, say: Callable[[str], None]) -> None:
    """Draw the report. If nothing here can draw it, say why in one line: the figures are written already.

    Raises StorageError if the page cannot be written: the one that is there may be of an earlier run.
    """
    try:
        say(f"report: {write_report(out)}")
    except ReportError as error:
        _say(str(error))
    except OSError as error:
        text = f"--out {out}: the page cannot be written ({error.strerror or error}); the figures are in {SUMMARY}"
        raise StorageError(text) from error
