"""``timewheel drain``: take a shard out of service once nothing is left in it (`broker.shards.draining`)."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import click

from broker.cli.common import one_line_errors, say
from broker.shards.layout import Layout
from remoting.json_dialect import loads
from store.disk.errors import StoreError, StoreLockedError
from store.disk.files import Files

__all__ = ["drain_command", "left_text"]

_EVERY_S = 0.5
_SHOWN = 5


@click.command("drain")
@click.argument("shard")
@click.option(
    "--store",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Store directory of the broker with its shards.",
)
@click.option(
    "--may-stay",
    multiple=True,
    metavar="TOPIC",
    help="Do not wait until the messages of this topic are read. Repeatable.",
)
@click.option("--undo", is_flag=True, help="Stop draining: the shard accepts messages again.")
@click.option("--no-wait", is_flag=True, help="Return at once, without waiting until the shard is out.")
def drain_command(shard: str, store: Path, may_stay: tuple[str, ...], undo: bool, no_wait: bool) -> None:
    """Drain SHARD: it accepts no more messages, and it stops when all its messages are delivered and read.

    SHARD is a broker name (broker-a-1) or a number. The command prints what is left until the shard is out. If the
    command is interrupted, the drain goes on, also after a restart of the broker. The shard's directory stays.
    """
    with one_line_errors():
        files = Files()
        layout = Layout(files, store)
        index = _index(layout, shard)
        mark = layout.drain_mark(index)
        if undo:
            if files.exists(mark):
                files.remove(mark)
            say(f"shard {index} is no longer being drained")
            return
        if index in layout.out:
            say(f"shard {index} is out already; its directory is {layout.directory(index)}")
            return
        if layout.members == [index]:
            raise click.ClickException(f"shard {index} is the only one left: at least one must stay")
        if not _runs(files, store):
            count = len(layout.members)
            raise click.ClickException(f"no broker runs on {store}: start it with --shards {count}, then drain")
        files.makedirs(mark.parent)
        files.replace_file(mark, "\n".join(may_stay).encode())
        if no_wait:
            say(f"shard {index} is being drained")
        else:
            _wait(files, store, index, mark)


def _index(layout: Layout, shard: str) -> int:
    known = sorted({*layout.members, *layout.out})
    found = re.fullmatch(r"(?:.*-)?([0-9]{1,3})", shard)
    if found is None or int(found[1]) not in known:
        shards = ", ".join(map(str, known)) or "none"
        raise click.UsageError(f"{shard}: no such shard (there are {shards}); expected a broker name or a number")
    return int(found[1])


def _runs(files: Files, store: Path) -> bool:
    """True if a supervisor runs on this store."""
    try:
        files.lock(store / "shards" / "lock")()
    except StoreLockedError:
        return True
    return False


def _wait(files: Files, store: Path, index: int, mark: Path) -> None:
    shown = ""
    while True:
        is_marked = files.exists(mark)  # before the look at the layout: a shard is out before its mark is removed
        layout = Layout(files, store)
        if index in layout.out:
            say(f"shard {index} is out; its directory {layout.directory(index)} stays")
            return
        if not is_marked:
            raise click.ClickException(f"the drain of shard {index} was undone")
        text = left_text(_left(files, mark.with_name("left.json")))
        if text != shown:
            say(f"shard {index}: {text}")
            shown = text
        time.sleep(_EVERY_S)


def _left(files: Files, path: Path) -> dict[str, Any] | None:
    try:
        document = loads(files.read_file(path)) if files.exists(path) else None
    except StoreError:
        return None
    return document["left"] if isinstance(document, dict) else None


def left_text(left: dict[str, Any] | None) -> str:
    """Describe in words the messages that are left in a shard. None: the shard has not reported yet.

    >>> left_text({"pending": 3, "unread": [{"topic": "Orders", "group": "g", "messages": 2}]})
    'left: 3 timed messages pending, 2 of Orders unread by g'
    """
    if left is None:
        return "waiting for its figures"
    if not left:
        return "empty"
    parts = [
        f"{left[name]} {words}"
        for name, words in (
            ("pending", "timed messages pending"),
            ("levels", "messages of delay levels pending"),
            ("undecided", "undecided half messages"),
        )
        if left.get(name)
    ]
    unread = left.get("unread") or []
    for entry in unread[:_SHOWN]:
        reader = f"unread by {entry['group']}" if entry["group"] else "that no group has read"
        parts.append(f"{entry['messages']} of {entry['topic']} {reader}")
    if len(unread) > _SHOWN:
        parts.append(f"and of {len(unread) - _SHOWN} more topics and groups")
    return "left: " + ", ".join(parts)
