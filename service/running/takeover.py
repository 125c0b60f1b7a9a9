"""Reasons why a takeover ends without an order. The instance tries the shard again after some seconds."""

from __future__ import annotations

from service.core.progress import Picture
from service.core.shard import Shard
from service.core.states import OwnerState
from timewheel_client.values.errors import ClientError

__all__ = [
    "TakeoverError",
    "expired_text",
    "need_followed",
    "need_order",
    "need_own_record",
    "need_same_takeovers",
    "need_whole_log",
    "owning_text",
    "whole_end",
    "why_fenced",
]


class TakeoverError(Exception):
    """The shard cannot be taken over now; the text says why."""


def why_fenced(shard: Shard) -> str:
    """A text: why an ownership was lost."""
    if shard.blind_at >= 0:
        return f"the record at offset {shard.blind_at} of the queue cannot be read and may be a takeover"
    return f"{shard.takeovers.owner or 'somebody'} took over"


def owning_text(shard: Shard, took_ms: int, read: tuple[int, int], waiting: int) -> str:
    """A text: the takeover has ended. ``read``: where reading began, and how many entries were read since."""
    backfill = shard.backfill
    rest = "" if backfill.is_whole else f"; {backfill.at} to {backfill.until} is read meanwhile"
    return (
        f"owning after {took_ms} ms as {shard.owner}: read {read[0]} to {shard.read_from} ({read[1]} entries), "
        f"{waiting} messages wait, {len(shard.scans())} target queues may hide deliveries{rest}"
    )


def expired_text(count: int) -> str:
    """A text: the cluster has deleted entries that wait."""
    return (
        f"the cluster has deleted {count} entries that were not delivered yet: they are lost. Keep --roll-after well "
        "below the brokers' fileReservedTime, and their disks below 85 %"
    )


def need_followed(shard: Shard, begin: int) -> None:
    """Raise TakeoverError if a follower has not read all entries that wait below the present begin of the queue.

    It delivers everything that it has read, even if the cluster has deleted it since. But entries that it could not
    read would never be done. And one of them may be a change of another entry, or the verdict on a command that it has
    read, which would get a second verdict.
    """
    low = min((shard.done.low, *shard.commands.asked))
    backfill = shard.backfill
    is_read = begin <= (shard.read_from if backfill.is_whole else backfill.at)
    is_dark = shard.takeovers.was_unreadable(low, begin) or backfill.misses_any(begin, shard.done)
    if begin > low and (not is_read or is_dark):
        raise TakeoverError(f"{shard.name}: the cluster has deleted entries that were not followed: reading anew")


def need_order(shard: Shard) -> None:
    """Raise TakeoverError if a record cannot be read, and the queue was not read in its order."""
    if shard.needs_all and shard.state is not OwnerState.FENCED:
        raise TakeoverError(f"{shard.name}: a record cannot be read that may be a verdict: reading everything, anew")


def whole_end(read_to: int, end: int) -> int:
    """The end of a queue that was read up to ``read_to`` when it was asked for.

    Raises ClientError if it lies before that: other messages have the same offsets now, and among them may be takeovers
    that were not read.
    """
    if end < read_to:
        raise ClientError(
            f"it ends at {end}, but {read_to} was read already: the topic was deleted, or its broker has lost the end "
            "of its log. Nothing is delivered"
        )
    return end


def need_whole_log(shard: Shard, next_offset: int) -> None:
    """Raise TakeoverError if a queue ends before the offset up to which it was read."""
    if next_offset < shard.read_from:
        raise TakeoverError(
            f"{shard.name}: the queue ends at {next_offset}, but {shard.read_from} was read already: the topic was "
            "deleted, or its broker has lost the end of its log. The same offsets now name other messages"
        )


def need_own_record(shard: Shard, stored_at: int) -> None:
    """Raise TakeoverError if the own takeover record was stored, but something else was read at its offset.

    An instance owns nothing before it has read that record. Without this check it would wait for ever.
    """
    if shard.state is OwnerState.TAKING_OVER and 0 <= stored_at < shard.read_from:
        broker = shard.name.rpartition("/")[0]
        raise TakeoverError(
            f"{shard.name}: the takeover record was stored at offset {stored_at} and cannot be read there: it is "
            f"damaged in the broker's log. The next try writes another one; if this comes again, look at the disk of "
            f"{broker}"
        )


def need_same_takeovers(shard: Shard, picture: Picture) -> None:
    """Raise TakeoverError if an owner counted other takeovers than were read here: one has rotted meanwhile."""
    if not shard.agrees(picture):
        raise TakeoverError(
            f"{shard.name}: a takeover record below offset {picture.generation} cannot be read any more, or could not "
            "be read by the owner that took over there. The queue is read again, by what that owner has noted"
        )
