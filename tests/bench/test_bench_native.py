"""The generator's loop in C against a peer that takes every frame apart: it sends and counts as the Python one does."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from bench.fetching.cache import need_tools
from bench.generator import native, rocketmq
from bench.generator.load import Load, LoadResult
from bench.generator.sender import Sender
from remoting.command import FLAG_RESPONSE, RemotingCommand, encode_command
from remoting.messages.batch import split_batch
from remoting.messages.properties import parse_properties
from tests.support.frames import decode_frame
from tests.support.need import need


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    need(lambda: need_tools("gcc"))
    native.library()


@dataclass
class Peer:
    """Answers each request, every ``refuse_every``th with a refusal, in pieces of ``piece`` bytes."""

    refuse_every: int = 0
    piece: int = 1 << 20
    close_after: int = 1 << 60
    bodies: list[bytes] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    opaques: list[int] = field(default_factory=list)
    port: int = 0

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            stream = sock.makefile("rb")
            while head := stream.read(4):
                command = decode_frame(stream.read(struct.unpack(">i", head)[0]))
                self._take(command)
                refused = self.refuse_every and len(self.opaques) % self.refuse_every == 0
                code, remark = (2, 'busy, not "code" 0') if refused else (0, "")
                reply = encode_command(RemotingCommand(code, command.opaque, FLAG_RESPONSE, remark=remark))
                for at in range(0, len(reply), self.piece):
                    sock.sendall(reply[at : at + self.piece])
                if len(self.opaques) >= self.close_after:
                    return

    def _take(self, command: RemotingCommand) -> None:
        self.opaques.append(command.opaque)
        if command.code == 320:
            for _, body, text in split_batch(command.body):
                self.bodies.append(bytes(body))
                self.texts.append(text)
        else:
            self.bodies.append(bytes(command.body))
            self.texts.append(command.ext["i"])


@contextlib.contextmanager
def serving(peer: Peer) -> Iterator[Peer]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer.port = server.getsockname()[1]

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    one = server.accept()[0]
                    # Else each piece waits for the one before to be acknowledged: 40 ms a reply, and no more pieces.
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=peer._serve, args=(one,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield peer
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


SHAPES = [
    Load(port=0, count=300, connections=1, in_flight=1),
    Load(port=0, count=500, connections=5, in_flight=1, kind="normal"),
    Load(port=0, count=500, connections=3, in_flight=7, body_bytes=16, kind="level"),
    Load(port=0, count=400, connections=2, in_flight=3, batch=20, body_bytes=64),
    Load(port=0, count=500, connections=4, in_flight=1 << 30, rate=20_000),
    Load(port=0, count=400, connections=4, in_flight=1 << 30, rate=20_000, batch=20),
]


@pytest.mark.parametrize("load", SHAPES, ids=lambda load: f"{load.kind} {load.in_flight}x{load.batch}")
@pytest.mark.parametrize("piece", [1 << 20, 5])
def test_every_message_is_sent_once_with_its_number_and_due_time(load: Load, piece: int) -> None:
    with serving(Peer(piece=piece)) as peer:
        wanted = replace(load, port=peer.port, first_number=7_000, seconds=30, due_at_ms=1_900_000_000_000)
        result = native.run(wanted)
    assert (result.sent, result.accepted, result.refused) == (load.count, load.count, 0)
    values = [struct.unpack(">qq", body[:16]) for body in peer.bodies]
    assert sorted(number for _, number in values) == list(range(7_000, 7_000 + load.count))
    for (due_us, number), text in zip(values, peer.texts, strict=True):
        properties = parse_properties(text)
        assert int(properties["UNIQ_KEY"][16:], 16) == number
        assert 3_600_000 <= due_us // 1000 - 1_900_000_000_000 < 10_800_000
        if load.kind == "timed":
            assert int(properties["TIMER_DELIVER_MS"]) * 1000 == due_us
    assert sorted(peer.opaques) == [1_000_007_000 + at for at in range(0, load.count, load.batch)]
    assert {len(body) for body in peer.bodies} == {load.body_bytes}


def test_refusals_are_counted_and_the_first_is_shown() -> None:
    with serving(Peer(refuse_every=7, piece=9)) as peer:
        result = native.run(Load(port=peer.port, count=210, connections=1, in_flight=10, seconds=30))
    assert (result.accepted, result.refused) == (180, 30)
    assert "busy" in result.refusal


def test_it_waits_for_replies_as_the_python_loop_does() -> None:
    results: list[LoadResult] = []
    for run in (native.run, lambda load: Sender(load).run()):
        with serving(Peer()) as peer:
            results.append(run(Load(port=peer.port, connections=2, in_flight=1, count=0, seconds=0.3)))
            assert len(peer.opaques) == results[-1].sent
    for result in results:
        assert result.sent == result.accepted > 0
        assert 0 < result.reply_p50_us <= result.reply_p99_us < 300_000
        assert result.reply_p50_us < 2 * 1e6 * 0.3 * 2 / result.sent  # two connections, one request out on each
        assert 0 < result.waited <= 1


def test_a_peer_that_leaves_is_an_error_unless_the_load_is_tolerant() -> None:
    for tolerant in (False, True):
        with serving(Peer(close_after=50)) as peer:
            load = Load(port=peer.port, connections=1, in_flight=4, seconds=30, tolerant=tolerant)
            if tolerant:
                result = native.run(load)
                assert result.broken
                assert 46 <= result.accepted <= 50
            else:
                with pytest.raises(ConnectionError, match=re.escape("the broker closed the connection")):
                    native.run(load)


def test_a_peer_that_reads_slowly_gets_whole_frames() -> None:
    load = Load(port=0, count=200, connections=1, in_flight=200, body_bytes=200_000, seconds=60, kind="normal")
    with serving(Peer()) as peer:
        result = native.run(replace(load, port=peer.port))
    assert result.accepted == 200
    assert all(body[16:] == b"x" * 199_984 for body in peer.bodies)
    assert len(set(peer.opaques)) == 200


def test_buckets_of_waiting_times_are_fine_and_ascend() -> None:
    bounds = native._bucket_seconds()
    assert np.all(np.diff(bounds) > 0)
    assert np.all(np.diff(bounds[64:]) <= bounds[64:-1] / 64 + 1e-12)
    assert bounds[-1] > 100_000


@pytest.mark.parametrize(
    "load",
    [Load(port=1, protocol="redis"), Load(port=1, accepted_path="numbers.npy")],
    ids=["another protocol", "numbers wanted"],
)
def test_what_it_cannot_do_is_left_to_python(load: Load) -> None:
    assert not native.can_run(load)
    assert native.can_run(Load(port=1))


def test_frames_have_room_for_all_fields() -> None:
    for load in SHAPES:
        for template in rocketmq.templates(load):
            assert {mark for mark, _ in template.fields} <= set(native._KINDS)
