"""A bug in the host: its put fails with who knows what, after it has appended. Nothing may come twice by that."""

from __future__ import annotations

import pytest

from tests.support.delay_world import DelayWorld


@pytest.mark.parametrize("restart", ["kill", "stop_and_start"])
def test_a_put_that_breaks_after_its_append_is_not_repeated_by_a_restart(restart: str) -> None:
    world = DelayWorld(1)
    start = world.clock.now_ms
    world.send([start + 1000, start + 1000, start + 4000], "T")

    def broken(_: object) -> None:
        raise RuntimeError("a bug")

    world.store.on_arrival = broken
    world.run(2000)
    world.store.on_arrival = None
    assert world.plugin.deliverer.uncertain == 2
    assert world.plugin.check() != []
    world.run(1500)  # and checkpoints are written meanwhile
    world.clock.now_ms -= 3000  # whoever scans there again finds nothing to deliver
    world.run(3000)
    getattr(world, restart)()
    world.run(3000)
    assert len(world.delivered()) == 3  # and it asserts that none is there twice
    assert world.plugin.pending_count() == 0
    assert world.plugin.check() == []
