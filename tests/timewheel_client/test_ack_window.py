from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from timewheel_client.consuming.ack_window import AckWindow


class AckWindowMachine(RuleBasedStateMachine):
    """Against a model that keeps every offset ever pulled and whether it was acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.start = 5
        self.window = AckWindow(self.start)
        self.open: set[int] = set()
        self.next_offset = self.start

    @rule(gaps=st.lists(st.integers(0, 3), max_size=4), tail=st.integers(0, 3))
    def pull(self, gaps: list[int], tail: int) -> None:
        offsets, at = [], self.next_offset
        for gap in gaps:
            offsets.append(at + gap)
            at += gap + 1
        self.next_offset = at + tail
        self.window.pulled(offsets, self.next_offset)
        self.open.update(offsets)

    @rule(data=st.data())
    def ack_an_open_one(self, data: st.DataObject) -> None:
        if self.open:
            offset = data.draw(st.sampled_from(sorted(self.open)))
            assert self.window.ack(offset)
            self.open.remove(offset)

    @rule(offset=st.integers(0, 40))
    def ack_anything(self, offset: int) -> None:
        assert self.window.ack(offset) == (offset in self.open)
        self.open.discard(offset)

    @rule(back=st.integers(1, 5))
    def offsets_that_do_not_rise_are_refused(self, back: int) -> None:
        with pytest.raises(ValueError, match="must rise"):
            self.window.pulled([self.next_offset - back], self.next_offset)
        with pytest.raises(ValueError, match="before the end"):
            self.window.pulled([self.next_offset], self.next_offset)

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.window.check() == []
        assert self.window.committed == min(self.open, default=self.next_offset)
        assert self.window.open_count == len(self.open)
        assert self.window.span == self.next_offset - self.window.committed


TestAckWindow = AckWindowMachine.TestCase


def test_restart_repeats_what_is_behind_an_open_one() -> None:
    window = AckWindow(7)
    window.pulled([7, 8, 9, 10], 11)
    assert window.ack(8)
    assert window.ack(10)
    assert window.committed == 7
    assert window.ack(7)
    assert window.committed == 9
    assert not window.ack(7)
    assert window.ack(9)
    assert window.committed == 11


def test_check_finds_a_broken_window() -> None:
    window = AckWindow(0)
    window.pulled([0, 1], 2)
    window._open.discard(0)
    assert window.check()
    window._open.update({0, 9})
    assert window.check()
