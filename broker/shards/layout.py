"""The shards of a store: their numbers, their directories, and those that a start runs.

A store with shards is the directory of shard 0, with the others beneath it::

    DIR/                    shard 0: commitlog, consumequeue, config, timewheel, as of a single broker
    DIR/shards/layout.json  which shards there are, and which of them are out
    DIR/shards/changes.json changes that a shard has not confirmed yet (`broker.shards.changes`)
    DIR/shards/1/           shard 1, a store of its own
    DIR/shards/1/drain      there while shard 1 is to be drained (`broker.shards.draining`)

So the store of a single broker becomes shard 0 without a byte being moved, and a new shard is an empty directory.

A shard that was drained is *out*: it does not run, and its directory stays. ``--shards N`` runs N shards. If fewer are
in, the lowest free indexes are added. If more are in, the start is refused: a message in a store that nobody runs is a
lost message.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.config.key import ConfigError
from broker.tables.json_files import JsonFile
from store.disk.files import Files

__all__ = ["SHARDS_MAX", "Layout", "refuse_shards", "shard_name"]

SHARDS_MAX = 64
"""Most shards of one store: far more than a machine has cores for."""

_VERSION = 1


def shard_name(broker_name: str, index: int) -> str:
    """The broker name of a shard.

    >>> shard_name("broker-a", 1)
    'broker-a-1'
    """
    return f"{broker_name}-{index}"


class Layout:
    """The shards of one store. Raises StoreError for files that cannot be read or written.

    Args:
        files: The door to the disk.
        store_dir: The store directory of the whole.
    """

    def __init__(self, files: Files, store_dir: Path) -> None:
        self._files = files
        self._dir = store_dir
        self._file = JsonFile(files, store_dir / "shards" / "layout.json")
        self.members: list[int] = []
        """Shards that run, by index."""
        self.out: list[int] = []
        """Shards that were drained."""
        document = self._file.load()
        if document is not None:
            self._read(document)

    def _read(self, document: dict[str, Any]) -> None:
        try:
            if int(document["version"]) > _VERSION:
                raise ConfigError(
                    f"{self._file.path} is of version {document['version']}: start it with the release that wrote it"
                )
            self.members = sorted({int(index) for index in document["members"]})
            self.out = sorted({int(index) for index in document["out"]})
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise self._file.damage("members", f"no list of shards: {error!r}") from error

    def directory(self, index: int) -> Path:
        """The store directory of a shard."""
        return self._dir if index == 0 else self._dir / "shards" / str(index)

    def directories(self) -> list[Path]:
        """The store directories of all shards that run or are out and still there; one, if there are no shards."""
        indexes = sorted({0, *self.members, *self.out})
        return [self.directory(index) for index in indexes if not index or self._files.exists(self.directory(index))]

    def drain_mark(self, index: int) -> Path:
        """The file that says that a shard is to be drained."""
        return (self._dir / "shards" / str(index)) / "drain"

    def choose(
        self, count: int, broker_name: str, admit: Callable[[int, list[int]], None] = lambda _source, _new: None
    ) -> list[int]:
        """Choose the shards of a start, and write that down.

        ``admit`` is called before new shards are written down, with a shard that was there before, and the new ones.
        If it fails, it is called again at the next start.

        Raises ConfigError if fewer are wanted than there are, StoreError, and what ``admit`` raises.
        """
        if not 1 <= count <= SHARDS_MAX:
            raise ConfigError(f"--shards {count}: 1 to {SHARDS_MAX} are possible")
        if count < len(self.members):
            last = shard_name(broker_name, self.members[-1])
            raise ConfigError(
                f"--shards {count}: {self._dir} has {len(self.members)} shards with messages of their own. Start it "
                f"with --shards {len(self.members)}, and take shards out first: timewheel drain {last} "
                f"--store {self._dir}"
            )
        wanted, index = set(self.members), 0
        while len(wanted) < count:
            wanted.add(index)
            index += 1
        if sorted(wanted) != self.members:
            source = min(self.members, default=0)
            admit(source, sorted(wanted - {source, *self.members}))
            self._save(list(wanted), [index for index in self.out if index not in wanted])
        return self.members

    def take_out(self, index: int) -> None:
        """Note that a shard was drained. Raises StoreError."""
        self._save([member for member in self.members if member != index], [*self.out, index])

    def _save(self, members: list[int], out: list[int]) -> None:
        members, out = sorted(members), sorted({*out})
        self._file.save({"members": members, "out": out, "version": _VERSION})
        self.members, self.out = members, out


def refuse_shards(files: Files, store_dir: Path, broker_name: str) -> None:
    """Raise ConfigError if a store has shards that a single broker would not see."""
    layout = Layout(files, store_dir)
    others = [index for index in layout.members if index]
    if others:
        names = ", ".join(shard_name(broker_name, index) for index in others)
        raise ConfigError(
            f"{store_dir} has {len(layout.members)} shards: start it with --shards {len(layout.members)}. To make it a "
            f"single broker's again, first take {names} out: timewheel drain {shard_name(broker_name, others[-1])} "
            f"--store {store_dir}"
        )
