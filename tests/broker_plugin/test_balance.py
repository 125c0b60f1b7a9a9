"""What is pending by topic, where a disk does not read."""

from __future__ import annotations

import pytest

from broker_plugin.aside import GateAside
from store.disk.errors import StoreError
from store.put.pending_api import PendingVerdict
from store.put.plugin_api import Held
from tests.broker_plugin.test_pending_desk import Desk
from tests.broker_plugin.test_pending_limits import offer


def test_a_cancel_that_cannot_tell_the_topic_is_asked_for_again_where_topics_are_counted() -> None:
    """Otherwise the topic would show one message too many until the next start."""
    desk = Desk()
    plugin = desk.world.plugin
    plugin.measure(10)
    taken = [offer(desk), offer(desk)]
    plugin.commit_turn()
    assert isinstance(taken[0], Held)
    with desk.unreadable(), pytest.raises(StoreError, match="cannot be read"):
        desk.change(taken[0].offset)
    assert [(row.topic, row.count) for row in plugin.pending.topics()] == [("T", 2)]
    assert desk.change(taken[0].offset).verdict is PendingVerdict.DONE
    assert [(row.topic, row.count) for row in plugin.pending.topics()] == [("T", 1)]


@pytest.mark.parametrize("large", [False, True])
def test_what_is_refused_behind_its_turn_counts_no_more(large: bool) -> None:
    """It counted until the next start."""
    desk = Desk()
    plugin = desk.world.plugin
    plugin.measure(10)
    aside = GateAside(plugin.gate)
    aside.begin()
    one, other = offer(desk), offer(desk, "U")
    if large:
        aside.take()
        aside.put_back()
    offer(desk)
    with plugin.lock:
        plugin.commit_turn()
        if large:
            aside.take_back()
        else:
            for held in (one, other):
                assert isinstance(held, Held)
                plugin.take_back(held)
    assert [(row.topic, row.count) for row in plugin.pending.topics()] == [("T", 1)]
