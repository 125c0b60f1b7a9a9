"""What ends a takeover otherwise than by order; the shard is tried again after some seconds."""

from __future__ import annotations

from service.core.shard import Shard
from service.core.states import OwnerState

__all__ = ["TakeoverError", "need_own_record", "need_whole_log"]


class TakeoverError(Exception):
    """The shard cannot be taken over now; the text says why."""


def need_whole_log(shard: Shard, next_offset: int) -> None:
    """Raises TakeoverError if a queue ends before what was read."""
    if next_offset < shard.read_from:
        raise TakeoverError(
            f"{shard.name}: the queue ends at {next_offset}, but {shard.read_from} was read already: the broker has "
            "lost the end of its log. Its offsets would mean other messages than before"
        )


def need_own_record(shard: Shard, stored_at: int) -> None:
    """Raises TakeoverError if the own takeover record was stored, and what stands there is something else.

    Nothing is owned before that record is read: it would be waited for, for ever.
    """
    if shard.state is OwnerState.TAKING_OVER and 0 <= stored_at < shard.read_from:
        broker = shard.name.rpartition("/")[0]
        raise TakeoverError(
            f"{shard.name}: the takeover record was stored at offset {stored_at} and cannot be read there: it is "
            f"damaged in the broker's log. The next try writes another one; if this is said again, look at the disk of "
            f"{broker}"
        )
