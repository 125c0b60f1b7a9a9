"""``timewheel bench``: what it can measure, on which systems, and where the results go."""

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
        raise click.BadParameter("a body holds its due time and its number: 16 bytes at least")
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


@click.command("bench", short_help="Measure our broker and its peers, in turn.")
@click.argument("workload", type=click.Choice([*WORKLOADS, SITTING[0], "all"]))
@click.option("--peers", callback=_peers, default=",".join(PEERS), show_default=True, help='Beside ours; "" for none.')
@click.option(
    "--shards", type=click.IntRange(1, 64), multiple=True, help="Also ours with so many shards; may be repeated."
)
@click.option("--pure", is_flag=True, help="Also ours without its native modules, if this is a compiled build.")
@click.option(
    "--minutes",
    type=click.FloatRange(1, 1_440),
    default=60.0,
    show_default=True,
    help="sitting: end after so many minutes.",
)
@click.option("--quick", is_flag=True, help="Short runs, once, small numbers: a few minutes for all.")
@click.option("--repeats", type=click.IntRange(1, 50), help="Turns through all systems (5; quick: 1).")
@click.option("--seconds", type=click.FloatRange(0.2, 600), help="Length of one measurement (30; quick: 1).")
@click.option(
    "--warm-up",
    "warm_up_seconds",
    type=click.FloatRange(1, 600),
    help="Warm each system for so many seconds (until its rate no longer rises, Java 60 at least; quick: 1.5).",
)
@click.option(
    "--sustain",
    "sustain_seconds",
    type=click.FloatRange(1, 86_400),
    default=600.0,
    show_default=True,
    help="sustained: hold the rate for so many seconds.",
)
@click.option("--body", "bodies", type=int, multiple=True, callback=_bodies, help="Body bytes (1024); repeatable.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(send.KINDS)), help="send: only this kind.")
@click.option("--shape", "shapes", multiple=True, type=click.Choice(list(send.SHAPES)), help="send: only this shape.")
@click.option("--flush", "flushes", multiple=True, type=click.Choice(send.FLUSHES), help="send: only this flush mode.")
@click.option(
    "--pending", "counts", type=click.IntRange(1), multiple=True, help="restart, memory, pop: so many pending."
)
@click.option("--generators", type=click.IntRange(1, 16), default=1, show_default=True, help="Generator processes.")
@click.option(
    "--fill-cache",
    is_flag=True,
    help="Fill the page cache before each start: for virtual machines on which fresh memory is slow.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write results.json and a page there.")
@click.option("--details", is_flag=True, help="Print also what is neither good nor bad: replies, processor time.")
@click.option("--dir", "place", type=click.Path(file_okay=False, exists=True, path_type=Path), help="For the stores.")
@click.option(
    "--markdown",
    metavar="RESULTS",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    multiple=True,
    callback=_results,
    expose_value=False,
    is_eager=True,
    help="Print the tables of a results.json in Markdown, and measure nothing. Several: their turns together.",
)
@click.option(
    "--list", is_flag=True, callback=_list, expose_value=False, is_eager=True, help="Say what can be measured on what."
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
    """Measure WORKLOAD on our broker and its peers, in turn; print medians, ranges and ratios.

    Each system runs on ports of its own on 127.0.0.1, with a temporary store. A message of ours that is lost or
    early makes the exit status 1; no timing does.
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
    """Run the workloads, printing each section when it is there; say whether ours lost anything or was early.

    ``minutes``: it is a sitting of that length instead.
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
    """Write what is known so far: a run that is broken off leaves its finished sections."""
    command = " ".join(["timewheel", *sys.argv[1:]])
    content = document(command, session.quick, machine, list(session.notes.values()), sections)
    write(content, out)
    (out / "tables.md").write_text(markdown(machine, sections))
    try:
        write_report(out)
    except ReportError as error:
        click.echo(printable(str(error)), err=True)
