"""``timewheel check``: list the faults of a store without changing it, or after a repair.

The store is opened and recovered as by the broker, but in memory only (`broker.cli.overlay`). Then every part checks
itself: the CommitLog its records by their CRCs, ConsumeQueues and key index against the CommitLog, the checkpoint, and
the plug-ins their files.

There are two kinds of findings. *wrong* is a fault that must not exist even after a crash. A *note* is a state that a
crash may leave and the next start repairs; after a clean stop it counts as wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from broker.cli.common import one_line_errors, pairs, say
from broker.cli.overlay import OverlayFiles
from broker.cli.repair import repair_store
from broker.config.broker_config import BrokerConfig, load_config
from broker.core import BrokerCore
from broker.open_files import raise_quietly
from broker.plugins import load_plugins
from broker.shards.layout import Layout
from store.disk.files import Files

__all__ = ["Findings", "check_command", "check_store"]

_LOOK_BYTES = 4096


class Findings:
    """The findings of a check: ``wrong`` and ``notes`` are sentences, ``summary`` says what was checked."""

    __slots__ = ("clean", "notes", "summary", "wrong")

    def __init__(self, clean: bool) -> None:
        self.clean = clean
        self.wrong: list[str] = []
        self.notes: list[str] = []
        self.summary = ""


@click.command("check")
@click.argument("store", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The store's broker.conf.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set one configuration key. Repeatable.")
@click.option("--repair", is_flag=True, help="Repair the store first. Removed bytes are kept aside.")
def check_command(store: Path, file: Path | None, settings: tuple[str, ...], repair: bool) -> None:
    """Check the STORE of a stopped broker, or of all its shards, and list its faults.

    Without --repair the command changes nothing. With --repair it repairs the store and deletes nothing: bytes that it
    removes or overwrites are kept in a folder under timewheel/aside in the store. The output names the folder.

    Exit status 0: no faults (left). 1: there are faults, or the store cannot be opened.
    """
    with one_line_errors():
        raise_quietly()  # files that were checked stay open
        directories = Layout(Files(), store).directories()
        wrong = False
        for directory in directories:
            config = load_config(file, {"storePathRootDir": str(directory)}, pairs(settings, "--set"))
            if not (directory / "commitlog").is_dir() and "storePathCommitLog" not in config.values:
                raise click.ClickException(f"{directory} is no store: it has no directory commitlog")
            wrong |= _check(config, repair, f"{directory}: " if len(directories) > 1 else "")
    raise SystemExit(1 if wrong else 0)


def _check(config: BrokerConfig, repair: bool, prefix: str) -> bool:
    """Check one store, after repairing it if asked to, and print the findings; True if something is wrong."""
    if repair:
        for text in repair_store(config) or ["nothing to repair"]:
            say(f"{prefix}repair: {text}")
    findings = check_store(config)
    for text in findings.notes:
        say(f"{prefix}note: {text}")
    for text in findings.wrong:
        say(f"{prefix}wrong: {text}")
    count = len(findings.wrong)
    verdict = "nothing is wrong" if not count else "1 finding" if count == 1 else f"{count} findings"
    say(f"{prefix}{findings.summary}: {verdict}")
    return bool(count)


def check_store(config: BrokerConfig) -> Findings:
    """Check the store of a configuration. Raises StoreError if it cannot be opened at all."""
    findings = Findings(clean=not (config.store_dir / "abort").exists())
    mended = findings.wrong if findings.clean else findings.notes
    if not findings.clean:
        findings.notes.append("the store was not closed cleanly: the next start recovers it")
    with _warnings_into(mended):
        core = BrokerCore(config, config.listen_port, load_plugins(config.plugins), files=OverlayFiles())
        try:
            log = core.store.commit_log
            torn = _bytes_behind(core)
            if torn:
                mended.append(torn)
            findings.wrong += core.store.check()
            findings.wrong += core.halves.check()
            findings.wrong += core.processors.pop.check()
            for plugin in core.plugins:
                findings.wrong += [f"plug-in {plugin.name}: {text}" for text in plugin.check()]
            findings.summary = (
                f"CommitLog {log.begin} to {log.end}, {len(core.store.topics_on_disk())} topics, "
                f"{core.pending_count()} pending"
            )
        finally:
            core.close()
    return findings


def _bytes_behind(core: BrokerCore) -> str:
    """A sentence about bytes on the disk behind the log's end that recovery found; empty if there are none."""
    log = core.store.commit_log
    for segment in log.segments():
        if segment.start <= log.end < segment.end and segment.path.exists():
            file = Files().open(segment.path)
            try:
                data = file.pread(min(_LOOK_BYTES, segment.end - log.end), log.end - segment.start)
            finally:
                file.close()
            if any(data):
                return f"{segment.path}: no whole record at CommitLog offset {log.end}: a start cuts the log off there"
    return ""


@contextmanager
def _warnings_into(texts: list[str]) -> Iterator[None]:
    """Collect the warnings that are logged while the store is opened."""

    class CheckConsumer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    root = logging.getLogger()
    collector = CheckConsumer(logging.WARNING)
    root.addHandler(collector)
    try:
        yield
    finally:
        root.removeHandler(collector)
