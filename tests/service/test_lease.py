"""The right to deliver under a steady load: a queue that is always written to is never read to its present end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.lease import LEASE_MS, Lease
from service.core.lines import Line, LineKind
from service.core.shard import MaySend
from service.link.clock import mono_ms
from service.link.cluster import ClusterLink
from service.running.instance_counts import InstanceCounts
from service.running.owner import Owner
from tests.service.target_world import owned_shard


def test_an_owner_that_reads_half_a_second_behind_a_steady_load_delivers() -> None:
    """On a machine that does much else, reading is never abreast of 25 messages a second."""
    shard = owned_shard("broker-a/3", LEASE_MS)
    refused = 0
    for now_ms in range(0, 20_000, 40):
        end = 1 + now_ms // 40
        behind = max(1, 1 + (now_ms - 500) // 40)
        shard.read([Line(at) for at in range(shard.read_from, behind)], behind, now_ms)
        if now_ms % 400 == 0:
            shard.end_seen(now_ms, end)
        if now_ms > 2000:
            refused += shard.may_send(1, 0, 1, now_ms, ("T",)) is not MaySend.GO
    assert not refused


@given(st.lists(st.tuples(st.sampled_from(["write", "read", "ask"]), st.integers(1, 900)), max_size=60))
def test_it_holds_only_for_what_was_read_within_two_seconds(steps: list[tuple[str, int]]) -> None:
    """Whatever was written before the last 2 s began has been read while the lease holds."""
    lease, now_ms, end, read_to = Lease(), 0, 0, 0
    written: list[int] = []
    for step, after_ms in steps:
        now_ms += after_ms
        if step == "write":
            written.append(now_ms)
            end += 1
        elif step == "read":
            read_to = min(end, read_to + 1)
            lease.read(read_to)
        else:
            lease.end_seen(now_ms, end, read_to)
        if lease.holds(now_ms):
            assert all(at > now_ms - LEASE_MS for at in written[read_to:])


def test_the_clock_of_leases_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop or a server that slept for ten seconds took its lease for valid: `time.monotonic` had not moved."""
    slept_ms = 0

    def since_boot(clock: int) -> int:
        return (1_000 + slept_ms * (clock == time.CLOCK_BOOTTIME)) * 1_000_000

    monkeypatch.setattr(time, "clock_gettime_ns", since_boot)
    monkeypatch.setattr(time, "monotonic_ns", lambda: since_boot(time.CLOCK_MONOTONIC))
    lease = Lease(2000)
    lease.renew(mono_ms())
    assert lease.holds(mono_ms())
    slept_ms = 10_000
    assert not lease.holds(mono_ms())


@pytest.mark.parametrize(("told", "holds"), [(21, True), (0, False), (20, False)])
def test_a_queue_that_ends_before_what_was_read_of_it_renews_no_lease(tmp_path: Path, told: int, holds: bool) -> None:
    """Its topic was made anew, or its broker has lost the end of its log: takeovers at those offsets were not read."""

    async def work() -> bool:
        cluster = ClusterLink("127.0.0.1:1", "TIMEWHEEL")
        owner = Owner(cluster, ("TIMEWHEEL", "broker-a", 3), "me", tmp_path / "cache", 1000, InstanceCounts())
        owner.shard.take_over("me")
        owner.shard.read([Line(0, LineKind.TAKEOVER, owner="me"), *(Line(at) for at in range(1, 21))], 21, 0)

        async def end(_: object) -> int:
            return told

        cluster.end = end  # type: ignore[method-assign, assignment]
        renewing = asyncio.ensure_future(owner._renew())
        await asyncio.sleep(0)
        renewing.cancel()
        return owner.shard.lease.holds(mono_ms())

    assert asyncio.run(work()) is holds
