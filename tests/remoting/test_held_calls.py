"""Reading and sending with the interpreter's lock kept: the same bytes and errors as the socket's own methods."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.held_calls import CONTENDED_S, CONTENDED_TURNS, HOLD_S, SEND_MAX_BYTES, HeldCalls


class _HeldUp:
    """A socket at its end, whose calls take long."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def recv_into(self, _: bytearray, /) -> int:
        self._rig.now_s += 2 * CONTENDED_S
        return 0

    def send(self, _: bytes, /) -> int:
        raise NotImplementedError


class Rig:
    """Two connected sockets and a clock that is set by hand; another thread may hold up the socket's own calls."""

    def __init__(self, size: int = 100) -> None:
        self.now_s = 1.0
        self.held_up_s = 0.0
        self.buffer = bytearray(size)
        self.calls = HeldCalls(lambda: self.now_s, self.buffer)
        self.here, self.there = socket.socketpair()
        for sock in (self.here, self.there):
            sock.setblocking(False)

    def recv_into(self, buffer: bytearray, /) -> int:
        self.now_s += self.held_up_s
        return self.there.recv_into(buffer)

    def send(self, data: bytes, /) -> int:
        self.now_s += self.held_up_s
        return self.here.send(data)

    def sends(self, data: bytes) -> int:
        return self.calls.send(self, self.here.fileno(), data)

    def reads(self) -> int:
        return self.calls.recv(self, self.there.fileno())

    def contend(self) -> None:
        """A read of another socket is held up by another thread; then a turn begins, and nothing is held up."""
        self.now_s += HOLD_S
        self.calls.begin()
        self.now_s += HOLD_S
        self.calls.recv(_HeldUp(self), -1)
        self.calls.begin()
        self.calls.held_count = 0

    def close(self) -> None:
        self.here.close()
        self.there.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def test_while_nobody_wants_the_lock_the_calls_are_the_sockets(rig: Rig) -> None:
    for _ in range(100):
        rig.calls.begin()
        rig.held_up_s = CONTENDED_S / 2
        assert rig.sends(b"a") == 1 and rig.reads() == 1
    assert rig.calls.held_count == 0


def test_after_a_read_that_was_held_up_calls_keep_the_lock_for_some_turns(rig: Rig) -> None:
    rig.contend()
    turns = 1
    while rig.sends(b"a") == rig.reads() == 1 and rig.calls.held_count == 2 * turns:
        rig.calls.begin()
        turns += 1
    assert turns == CONTENDED_TURNS + 1
    assert rig.calls.held_count == 2 * CONTENDED_TURNS, "they began to release it again"


def test_the_lock_is_released_every_now_and_then(rig: Rig) -> None:
    rig.contend()
    rig.now_s += HOLD_S / 2
    assert rig.sends(b"b") == 1 and rig.reads() == 1 and rig.calls.held_count == 2
    rig.now_s += HOLD_S
    assert rig.sends(b"c") == 1 and rig.calls.held_count == 2, "it was kept for too long"
    assert rig.reads() == 1 and rig.calls.held_count == 3, "the call before released it"


def test_a_large_answer_releases_it(rig: Rig) -> None:
    rig.contend()
    assert rig.sends(bytes(SEND_MAX_BYTES)) > 0 and rig.calls.held_count == 1
    assert rig.sends(bytes(SEND_MAX_BYTES + 1)) > 0 and rig.calls.held_count == 1


@pytest.mark.parametrize("held", [True, False])
def test_errors_are_the_sockets(rig: Rig, held: bool) -> None:
    def begin() -> None:
        rig.calls.begin()
        if held:
            rig.contend()

    begin()
    with pytest.raises(BlockingIOError):
        rig.reads()
    begin()
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            sent += rig.sends(bytes(1_000))
            begin()
    assert sent > 1_000
    rig.there.close()
    begin()
    with pytest.raises(BrokenPipeError):  # and no signal
        rig.sends(b"x")


def test_the_end_of_a_stream_is_no_error(rig: Rig) -> None:
    rig.contend()
    rig.here.close()
    assert rig.reads() == 0 and rig.calls.held_count == 1


def test_the_lock_is_kept(rig: Rig) -> None:
    """Nobody takes it by force here: another thread that wants it gets it between calls of the socket, not of these."""
    stop = threading.Event()
    steps = [0]

    def want() -> None:
        while not stop.wait(0.0001):
            steps[0] += 1

    interval_s = sys.getswitchinterval()
    other = threading.Thread(target=want)
    other.start()
    try:
        sys.setswitchinterval(100)
        for kept in (False, True):
            before = steps[0]
            for _ in range(3_000 if kept else 3_000_000):
                if kept:
                    rig.contend()
                rig.sends(b"x")
                rig.reads()
                if steps[0] != before:
                    break
            assert (steps[0] == before) == kept
    finally:
        sys.setswitchinterval(interval_s)
        stop.set()
        other.join()


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.booleans(), st.sampled_from([0.0, HOLD_S * 2]))))
def test_the_bytes_are_those_that_were_sent(steps: list[tuple[bytes, bool, float]]) -> None:
    rig = Rig(64)
    sent, came = bytearray(), bytearray()
    try:
        for data, begins, held_up_s in steps:
            if begins:
                rig.calls.begin()
            rig.held_up_s = held_up_s
            sent += data[: rig.sends(data)]
            came += rig.buffer[: rig.reads()]
        while len(came) < len(sent):
            came += rig.buffer[: rig.reads()]
        assert came == sent
    finally:
        rig.close()
