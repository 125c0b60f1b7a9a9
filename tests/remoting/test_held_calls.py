"""Reading and sending with the interpreter's lock kept: the same bytes and errors as the socket's own methods."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.held_calls import HOLD_S, SEND_MAX_BYTES, HeldCalls


class Rig:
    """Two connected sockets and a clock that is set by hand."""

    def __init__(self, size: int = 100) -> None:
        self.now_s = 1.0
        self.buffer = bytearray(size)
        self.calls = HeldCalls(lambda: self.now_s, self.buffer)
        self.here, self.there = socket.socketpair()
        for sock in (self.here, self.there):
            sock.setblocking(False)

    def send(self, data: bytes) -> int:
        return self.calls.send(self.here, self.here.fileno(), data)

    def recv(self) -> int:
        return self.calls.recv(self.there, self.there.fileno())

    def close(self) -> None:
        self.here.close()
        self.there.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def test_a_call_keeps_the_lock_for_a_while_after_it_was_released(rig: Rig) -> None:
    assert rig.send(b"a") == 1 and rig.calls.held_count == 0, "no turn has begun"
    rig.calls.begin(False)
    assert rig.send(b"a") == 1 and rig.recv() == 2 and rig.calls.held_count == 0, "a turn of one"
    rig.calls.begin(True)
    rig.now_s += HOLD_S / 2
    assert rig.send(b"b") == 1 and rig.recv() == 1 and rig.calls.held_count == 2
    rig.now_s += HOLD_S
    assert rig.send(b"c") == 1 and rig.calls.held_count == 2, "it was kept for too long"
    assert rig.recv() == 1 and rig.calls.held_count == 3, "the call before released it"


def test_a_large_answer_releases_it(rig: Rig) -> None:
    rig.calls.begin(True)
    assert rig.send(bytes(SEND_MAX_BYTES)) > 0 and rig.calls.held_count == 1
    assert rig.send(bytes(SEND_MAX_BYTES + 1)) > 0 and rig.calls.held_count == 1


@pytest.mark.parametrize("held", [True, False])
def test_errors_are_the_sockets(rig: Rig, held: bool) -> None:
    def begin() -> None:
        if held:
            rig.calls.begin(True)
        else:
            rig.now_s += 1

    begin()
    with pytest.raises(BlockingIOError):
        rig.recv()
    begin()
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            sent += rig.send(bytes(1_000))
            begin()
    assert sent > 1_000
    rig.there.close()
    begin()
    with pytest.raises(BrokenPipeError):  # and no signal
        rig.send(b"x")


def test_the_end_of_a_stream_is_no_error(rig: Rig) -> None:
    rig.here.close()
    rig.calls.begin(True)
    assert rig.recv() == 0 and rig.calls.held_count == 1


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
        for several in (False, True):
            before = steps[0]
            for _ in range(3_000 if several else 3_000_000):
                rig.calls.begin(several)
                rig.send(b"x")
                rig.recv()
                if steps[0] != before:
                    break
            assert (steps[0] == before) == several
    finally:
        sys.setswitchinterval(interval_s)
        stop.set()
        other.join()


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.booleans(), st.sampled_from([0.0, HOLD_S * 2]))))
def test_the_bytes_are_those_that_were_sent(steps: list[tuple[bytes, bool, float]]) -> None:
    rig = Rig(64)
    sent, came = bytearray(), bytearray()
    try:
        for data, released, pause_s in steps:
            if released:
                rig.calls.begin(True)
            rig.now_s += pause_s
            sent += data[: rig.send(data)]
            rig.now_s += pause_s
            came += rig.buffer[: rig.recv()]
        while len(came) < len(sent):
            came += rig.buffer[: rig.recv()]
        assert came == sent
    finally:
        rig.close()
