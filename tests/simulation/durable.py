"""What must be on the medium when a broker is up, and what must not: a look beneath the page cache.

Most of what a start may get wrong shows only if the power fails soon after it, and only if the last broker had ended
in a certain way. What the start should have left behind can be looked at at once:

- every byte of log and journal that it calls durable is on the medium, not only in the page cache of a machine whose
  last sync failed;
- behind the log's end nothing stands but zeros, on the medium as in the cache, since an old record there would be as
  good as a new one; behind the journal's end in the cache only, since epochs tell its old frames from new ones;
- a start that has derived all queues anew has written a checkpoint: the old one's numbers mean other messages now;
- the state files that it has read have names that a power cut cannot take back.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from store.disk.segments import segment_name
from tests.simulation.kinds import Kind, Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["check_durable"]

CHECKPOINT = Path("/store/timewheel/checkpoint")
STATE_FILES = frozenset({"checkpoint", "progress", "store", "manifest", "manifest.copy"})


def check_durable(world: World) -> None:
    """Raise a `Violation` if a broker that has just started builds on what is not there."""
    log, journal = world.store.commit_log, world.plugin.spill.journal
    for start in sorted(log._segments):
        segment = log._segments[start]
        path = log.directory / segment_name(start)
        _compare(world, path, min(log.synced, segment.end) - start, max(0, log.end - start), True)
    for part in journal.segments:
        durable = min(journal.synced, part.base + part.end) - part.base
        _compare(world, part.file.path, durable, part.size if part.closed else part.end, False)
    checkpoint = world.disk._seen.get(CHECKPOINT)
    if world.anew is not None and checkpoint is not None and checkpoint.medium == world.anew:
        raise Violation(Kind.DURABLE, f"all queues were derived anew, and {CHECKPOINT} still speaks of those before")
    world.anew = None
    for directory, steps in world.disk._pending.items():
        for _, path, _ in steps:
            if path.name in STATE_FILES and "timewheel" in path.parts and world.disk.exists(path):
                raise Violation(Kind.DURABLE, f"{path} was read, and its name is not durable: sync {directory}")


def _compare(world: World, path: Path, durable: int, end: int, zeroed: bool) -> None:
    inode = world.disk._seen.get(path)
    if inode is None:
        raise Violation(Kind.DURABLE, f"{path} is not there")
    for name in (path, *path.parents):
        if name not in world.disk._medium and name.parent != name:
            raise Violation(Kind.DURABLE, f"the name of {name} is not durable")
    if durable > 0 and inode.seen[:durable] != inode.medium[:durable]:
        at = next(at for at in range(durable) if inode.seen[at : at + 1] != inode.medium[at : at + 1])
        raise Violation(Kind.DURABLE, f"{path} at {at}: called durable up to {durable}, and not on the medium")
    if any(inode.seen[end:]) or (zeroed and any(inode.medium[end:])):
        raise Violation(Kind.DURABLE, f"{path}: something stands behind its end, {end}, after a start")
