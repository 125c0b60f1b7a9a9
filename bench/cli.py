"""``timewheel bench``: the command line of the benchmarks."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench.figures.results import Section, document, joined, read, write
from bench.figures.table import markdown, print_section
from bench.peers.catalogue import OURS, PEERS, VARIANTS
from bench.peers.rocketmq import OURS_PURE, ours_with
from bench.peers.system import System
from bench.report import ReportError, write_report
from bench.running.machine import PageCache, describe
from bench.running.session import BenchError, Session
from bench.workloads import send
from bench.workloads.catalogue import SITTING, WORKLOADS
from bench.workloads.sitting import sitting
from remoting.messages.build import build_name
from remoting.printable import printable

__all__ = ["bench"]


def _bodies(_context: click.Context, _option: click.Parameter, value: tuple[int, ...]) -> tuple[int, ...]:
    if any(size < 16 for size in value):
        raise click.BadParameter("a body contains its due time and its number, so it has at least 16 bytes")
    return value or (1024,)


def _peers(_context: click.Context, _option: click.Parameter, value: str) -> list[str]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    wrong = [name for name in names if name not in PEERS]
    if wrong:
        raise click.BadParameter(f"{', '.join(wrong)}: known are {', '.join(PEERS)}")
    return names


def _results(_context: click.Context, _option: click.Parameter, value: tuple[Path, ...]) -> None:
    if not value:
        return
    try:
        contents = [read(path) for path in value]
        sections = joined(contents)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    click.echo(markdown(contents[0]["machine"], sections))
    raise click.exceptions.Exit


def _list(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if not value:
        return
    click.echo("workloads:")
    for name, text in [*((name, text) for name, (text, _) in WORKLOADS.items()), SITTING]:
        click.echo(f"  {name:<12}{text}")
    click.echo("systems:")
    for name, system in {OURS.name: OURS, **PEERS}.items():
        more = "".join(f"; {variant.title}" for variant in VARIANTS.get(name, ()))
        click.echo(f"  {name:<12}{system.title}{more}")
    context.exit()


@click.command("bench", short_help="Measure our broker and other systems, in turn.")
@click.argument("workload", type=click.Choice([*WORKLOADS, SITTING[0], "all"]))
@click.option(
    "--peers",
    callback=_peers,
    default=",".join(PEERS),
    show_default=True,
    help='Systems to compare with, separated by commas; "" for none.',
)
@click.option(
    "--shards",
    type=click.IntRange(1, 64),
    multiple=True,
    help="Also measure our broker with this number of shards. Repeatable.",
)
@click.option(
    "--pure", is_flag=True, help="Also measure our broker without its native modules, if this is a compiled build."
)
@click.option(
    "--minutes",
    type=click.FloatRange(1, 1_440),
    default=60.0,
    show_default=True,
    help="sitting: total time in minutes.",
)
@click.option("--quick", is_flag=True, help="Short runs with small numbers, once: a few minutes for all workloads.")
@click.option("--repeats", type=click.IntRange(1, 50), help="Turns through all systems.  [default: 5; quick: 1]")
@click.option("--seconds", type=click.FloatRange(0.2, 600), help="Seconds of one measurement.  [default: 30; quick: 1]")
@click.option(
    "--warm-up",
    "warm_up_seconds",
    type=click.FloatRange(1, 600),
    help="Seconds of warm-up.  [default: until the rate no longer rises, for Java at least 60; quick: 1.5]",
)
@click.option(
    "--sustain",
    "sustain_seconds",
    type=click.FloatRange(1, 86_400),
    default=600.0,
    show_default=True,
    help="sustained: seconds for which the rate is held.",
)
@click.option(
    "--rate",
    type=click.IntRange(1, 1_000_000),
    help="sustained: timed messages a second.  [default: 20,000; quick: 2,000]",
)
@click.option(
    "--body", "bodies", type=int, multiple=True, callback=_bodies, help="Bytes of a body. Repeatable.  [default: 1024]"
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(list(send.KINDS)),
    help="send: only this kind of message. Repeatable.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=click.Choice(list(send.SHAPES)),
    help="send: only this shape (connections x requests in flight). Repeatable.",
)
@click.option(
    "--flush", "flushes", multiple=True, type=click.Choice(send.FLUSHES), help="send: only this flush mode. Repeatable."
)
@click.option(
    "--pending",
    "counts",
    type=click.IntRange(1),
    multiple=True,
    help="restart, memory, pop, cancel: number of pending messages; hot-second: number due at once. Repeatable.",
)
@click.option(
    "--generators", type=click.IntRange(1, 16), default=1, show_default=True, help="Number of load generator processes."
)
@click.option(
    "--fill-cache",
    is_flag=True,
    help="Fill the page cache before each start. For virtual machines on which the first use of memory is slow.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write results.json, tables and a page into this folder.",
)
@click.option(
    "--details", is_flag=True, help="Also print figures that are neither good nor bad: replies, processor time."
)
@click.option(
    "--dir", "place", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Folder for the stores."
)
@click.option(
    "--markdown",
    metavar="RESULTS",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    multiple=True,
    callback=_results,
    expose_value=False,
    is_eager=True,
    help="Print the tables of a results.json in Markdown, and measure nothing. Repeatable: combines their turns.",
)
@click.option(
    "--list", is_flag=True, callback=_list, expose_value=False, is_eager=True, help="List workloads and systems."
)
def bench(
    workload: str,
    peers: list[str],
    shards: tuple[int, ...],
    pure: bool,
    minutes: float,
    quick: bool,
    repeats: int | None,
    seconds: float | None,
    warm_up_seconds: float | None,
    sustain_seconds: float,
    rate: int | None,
    bodies: tuple[int, ...],
    kinds: tuple[str, ...],
    shapes: tuple[str, ...],
    flushes: tuple[str, ...],
    counts: tuple[int, ...],
    generators: int,
    fill_cache: bool,
    out: Path | None,
    details: bool,
    place: Path | None,
) -> None:
    """Measure WORKLOAD on our broker and other systems, in turn. Print medians, ranges and ratios.

    Each system runs on ports of its own on 127.0.0.1, with a temporary store. The exit status is 1 if our broker lost a
    message or delivered one early; it does not depend on any timing.
    """
    chosen = {name: run for name, (_, run) in WORKLOADS.items() if workload in (name, "all")}
    folder = Path(tempfile.mkdtemp(prefix="timewheel-bench-", dir=place))
    try:
        session = Session(
            folder=folder,
            systems=[],
            quick=quick,
            repeats=repeats or (1 if quick else 5),
            seconds=seconds or (1.0 if quick else 30.0),
            warm_up_seconds=warm_up_seconds,
            sustain_seconds=sustain_seconds,
            sustain_rate=rate,
            bodies=bodies,
            generators=generators,
            peers=peers,
            shards=shards,
            pure=pure,
            counts=counts,
            page_cache=PageCache(folder) if fill_cache else None,
        )
        if "send" in chosen:
            usual = send.default_choice(session)
            choice = send.SendChoice(kinds or usual.kinds, shapes or usual.shapes, flushes or usual.flushes)
            chosen["send"] = partial(send.run, choice=choice)
        failed = _run(session, chosen, out, details, minutes if workload == SITTING[0] else None)
    except BenchError as error:
        raise click.ClickException(str(error)) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if failed:
        sys.exit(1)


def _run(
    session: Session,
    chosen: dict[str, Callable[[Session], Section]],
    out: Path | None,
    details: bool,
    minutes: float | None,
) -> bool:
    """Run the workloads and print each section when it is finished; True if ours lost a message or was early.

    ``minutes``: run a sitting of that length instead.
    """
    console, errors = Console(), Console(stderr=True)
    if not console.is_terminal:
        console = Console(width=160)
    machine = describe(session.folder)
    sections: list[Section] = []

    def keep(found: list[Section]) -> None:
        if out is not None:
            _write(session, machine, found, out)

    with errors.status("timewheel bench") as status:
        session.say = status.update if errors.is_terminal else partial(click.echo, err=True)
        session.say(f"ours is the {build_name()} build")
        session.measure_limits()
        machine["limits"] = session.limits
        session.systems = session.available([OURS, *_others_of_ours(session), *(PEERS[name] for name in session.peers)])
        for note in session.notes.values():
            if note.left_out:
                console.print(f"left out: {note.title}: {note.left_out}", highlight=False, markup=False)
        if minutes is not None:
            sections = sitting(session, minutes, keep)
            for section in sections:
                print_section(console, section, details)
        for run in chosen.values():
            section = run(session)
            sections.append(section)
            print_section(console, section, details)
            keep(sections)
    return any(section.failures for section in sections)


def _others_of_ours(session: Session) -> list[System]:
    pure = [OURS_PURE] if session.pure and build_name() == "compiled" else []
    return [*map(ours_with, session.shards), *pure]


def _write(session: Session, machine: dict[str, Any], sections: list[Section], out: Path) -> None:
    """Write the results so far, so that an interrupted run leaves its finished sections."""
    command = " ".join(["timewheel", *sys.argv[1:]])
    content = document(command, session.quick, machine, list(session.notes.values()), sections)
    write(content, out)
    (out / "tables.md").write_text(markdown(machine, sections))
    try:
        write_report(out)
    except ReportError as error:
        click.echo(printable(str(error)), err=True)
