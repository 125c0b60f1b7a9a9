"""When a broker looks for pulls that end: the loop's timers are turned by hand."""

import asyncio

from broker.lookout import Lookout
from broker.net.channel import MemoryChannel
from broker.pulling.long_poll import Hold, LongPoll


class Turn:
    """What is asked of the real one."""

    def __init__(self) -> None:
        self.unsynced_bytes = 0
        self.looks = 0

    def look_at_disk(self) -> None:
        self.looks += 1


class Loop:
    """Timers of a loop whose time is the rig's."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.timers: list[tuple[int, object]] = []

    def call_later(self, delay_s, action):
        timer = (self.now_ms + round(delay_s * 1000), action)
        self.timers.append(timer)
        loop = self

        class Handle:
            def cancel(self):
                if timer in loop.timers:
                    loop.timers.remove(timer)

        return Handle()

    def run_until(self, end_ms):
        while self.timers and min(self.timers)[0] <= end_ms:
            timer = min(self.timers)
            self.timers.remove(timer)
            self.now_ms = timer[0]
            timer[1]()
        self.now_ms = end_ms


class Rig:
    def __init__(self, monkeypatch) -> None:
        self.loop = Loop()
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self.loop)
        self.poll, self.turn = LongPoll(), Turn()
        self.channel = MemoryChannel()
        self.ended: list[int] = []
        self.lookout = Lookout(self.poll, self.turn, lambda: self.loop.now_ms)

    def hold(self, for_ms):
        def retry(final):
            self.ended.append(self.loop.now_ms)
            return final

        self.poll.hold(Hold(self.channel, ("T", 0), self.loop.now_ms + for_ms, retry))


def test_it_looks_often_while_something_is_written_and_rarely_while_nothing_is(monkeypatch):
    rig = Rig(monkeypatch)
    rig.turn.unsynced_bytes = 1
    rig.loop.run_until(2_000)
    assert rig.turn.looks == 10
    rig.turn.unsynced_bytes = 0
    rig.loop.run_until(2_100)
    rig.turn.looks = 0
    rig.loop.run_until(10_100)
    assert rig.turn.looks == 20


def test_a_pull_ends_a_tenth_of_a_second_late_at_most_however_long_the_rest_was_to_be(monkeypatch):
    rig = Rig(monkeypatch)
    for begin_ms in range(1_650, 5_000, 137):
        rig.loop.run_until(begin_ms)
        rig.hold(50)
        rig.loop.run_until(begin_ms + 150)
        assert rig.ended and begin_ms + 50 <= rig.ended.pop() <= begin_ms + 150


def test_short_pulls_one_after_the_other_do_not_put_it_off(monkeypatch):
    rig = Rig(monkeypatch)
    for at_ms in range(1_000, 3_000, 7):
        rig.loop.run_until(at_ms)
        rig.hold(20)
    assert len(rig.ended) > 240
    assert rig.turn.looks >= 19


def test_a_pull_that_ends_in_a_while_ends_then(monkeypatch):
    rig = Rig(monkeypatch)
    rig.hold(15_000)
    rig.loop.run_until(20_000)
    assert rig.ended == [16_000]


def test_what_fails_is_tried_again(monkeypatch, caplog):
    rig = Rig(monkeypatch)

    def broken():
        rig.turn.looks += 1
        raise ValueError("no disk")

    rig.turn.look_at_disk = broken
    rig.loop.run_until(2_000)
    assert rig.turn.looks >= 2 and "no disk" in caplog.text


def test_it_stops(monkeypatch):
    rig = Rig(monkeypatch)
    rig.lookout.stop()
    rig.hold(10)
    assert rig.loop.timers == []
