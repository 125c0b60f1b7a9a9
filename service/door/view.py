"""Read-only view of an instance for its door. Any thread may call it; it takes no lock of the event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from http_door.work import NotReadyError
from service.core.progress import TargetQueue
from service.core.states import OwnerState
from service.door.coverage import ShardSight, Sighting
from service.metrics.health import why_not_ready
from service.running.instance_counts import InstanceCounts
from service.running.owner import Owner
from service.running.service import DelayService
from store.disk.delay_id import delay_id

__all__ = ["InstanceView", "ServiceView", "ShardCare"]

_FOLLOWS = (OwnerState.FOLLOWER, OwnerState.TAKING_OVER, OwnerState.READING_BACK)


@dataclass(frozen=True, slots=True)
class ShardCare:
    """The next owner of a shard if this one vanished, its deliveries in doubt, and its refused ones.

    ``refused``: messages that brokers refuse to the service's own account, in a shard that this instance owns.
    """

    standby: str = ""
    doubts: int = 0
    refused: int = 0


class InstanceView(Protocol):
    """The part of an instance that the door reads. Any thread."""

    @property
    def name(self) -> str:
        """The instance's name as a member."""
        ...

    @property
    def topic(self) -> str:
        """The entry topic."""
        ...

    @property
    def roll_after_ms(self) -> int:
        """Age at which an entry that waits is rolled, ms after its store time."""
        ...

    @property
    def tally(self) -> InstanceCounts:
        """The counters of the instance."""
        ...

    def sights(self) -> list[ShardSight]:
        """All shards, sorted by name. Raises NotReadyError before they are known."""
        ...

    def care(self) -> Mapping[str, ShardCare]:
        """The `ShardCare` of shards, by name."""
        ...

    def why_not_ready(self) -> Sequence[str]:
        """The reasons why the instance is not ready; empty if it is."""
        ...


class ServiceView:
    """The view of a running service.

    Args:
        service: The instance.
        mono_ms: Reads the clock that leases are measured with.
    """

    def __init__(self, service: DelayService, mono_ms: Callable[[], int]) -> None:
        self._service = service
        self._mono_ms = mono_ms
        self._heirs: tuple[object, dict[TargetQueue, str]] = (None, {})

    @property
    def name(self) -> str:
        """The instance's name as a member."""
        return self._service.name

    @property
    def topic(self) -> str:
        """The entry topic."""
        return self._service.topic

    @property
    def roll_after_ms(self) -> int:
        """Age at which an entry that waits is rolled, ms after its store time."""
        return self._service.roll_after_ms

    @property
    def tally(self) -> InstanceCounts:
        """The counters of the instance."""
        return self._service.tally

    def why_not_ready(self) -> Sequence[str]:
        """The reasons why the instance is not ready; empty if it is."""
        return why_not_ready(self._service)

    def sights(self) -> list[ShardSight]:
        """All shards, sorted by name. Raises NotReadyError before they are known."""
        service = self._service
        seats = service.seats()
        owners = {owner.queue: owner for owner in (*service.followers(), *service.owners())}
        if not seats and not owners:
            raise NotReadyError("it has not begun: which shards there are is not known yet")
        now_ms = self._mono_ms()
        found = [
            self._seen(owners[queue], seats.get(queue, ""), now_ms)
            if queue in owners
            else ShardSight(_name(queue), Sighting.MISSING, seats[queue], "another instance owns it")
            for queue in seats.keys() | owners.keys()
        ]
        return sorted(found, key=lambda sight: sight.name)

    def _seen(self, owner: Owner, seat: str, now_ms: int) -> ShardSight:
        shard, cache, state = owner.shard, owner.cache, owner.shard.state
        who = self.name if state is OwnerState.OWNING else shard.takeovers.owner.rpartition("#")[0] or seat
        if cache is None or state is OwnerState.FENCED:
            return ShardSight(owner.name, Sighting.MISSING, who, "it is not read yet" if cache is None else state.value)
        control, first = cache.plugin.pending, delay_id(cache.plugin.spill.epoch, 0)
        if state in _FOLLOWS:
            if not (owner.queue_end.is_fresh(now_ms) and owner.is_filled and shard.backfill.is_whole):
                return ShardSight(owner.name, Sighting.MISSING, who, f"{state.value}: not read to its end yet")
            detail = "" if state is OwnerState.FOLLOWER else f"this instance is {state.value}"
            return ShardSight(owner.name, Sighting.FOLLOWED, who, detail, control, first)
        if state is OwnerState.OWNING and not shard.backfill.is_whole:
            why = f"entries {shard.backfill.at} to {shard.backfill.until - 1} of its queue are still being read"
            return ShardSight(owner.name, Sighting.STALE, who, why, control, first)
        if state is OwnerState.OWNING and owner.is_filled and shard.lease.holds(now_ms):
            doubts = len(shard.doubts) + len(shard.lost)
            detail = "what may have been delivered already is being looked for" if doubts else ""
            return ShardSight(owner.name, Sighting.OWNED, who, detail, control, first)
        why = state.value if state is not OwnerState.OWNING else "not read to its end within the last 2 s"
        return ShardSight(owner.name, Sighting.STALE, who, why, control, first)

    def care(self) -> Mapping[str, ShardCare]:
        """The `ShardCare` of shards, by name."""
        service = self._service
        seats, (of, heirs) = service.seats(), self._heirs
        if of is not seats:  # a new plan
            heirs = service.heirs()
            self._heirs = seats, heirs
        own = {
            owner.queue: (
                len(owner.shard.lost) + len(owner.shard.doubts),
                owner.cache.refused_count if owner.cache is not None else 0,
            )
            for owner in service.owners()
        }
        return {
            _name(queue): ShardCare(heirs.get(queue, ""), *own.get(queue, ())) for queue in seats.keys() | own.keys()
        }


def _name(queue: TargetQueue) -> str:
    return f"{queue[1]}/{queue[2]}"
