"""The peers' protocols on made-up bytes: replies counted and deliveries read, however the bytes come in."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.generator import lines, nats
from bench.generator.arrivals import NO_STAMP, join
from bench.generator.intake import Intake, Reception
from bench.generator.load import Load
from bench.generator.protocols import PROTOCOLS, ReplyCounter
from bench.generator.ring import Ring
from bench.peers.naive import Naive

BODY = struct.Struct(">qq")
NOW_MS = 1_763_000_000_123


def bodies(count: int) -> list[bytes]:
    """Bodies that hold line ends, too: due times and numbers are binary."""
    return [BODY.pack(5_000_000 + number, 0x0D0A_0D0A + number) + b"\r\n" * number for number in range(count)]


def fed(counter: ReplyCounter, wire: bytes, cut: int) -> tuple[int, int]:
    answered = refused = 0
    for at in range(0, len(wire), cut):
        more, bad = counter.feed(wire[at : at + cut])
        answered, refused = answered + more, refused + bad
    return answered, refused


def received(intake: Intake, wire: bytes, cut: int) -> tuple[list[tuple[int, ...]], bytes]:
    parts, asked = [], b""
    for at in range(0, len(wire), cut):
        rows, more = intake.feed(wire[at : at + cut], 42)
        parts += rows
        asked += more
    return [tuple(row) for row in join(parts).rows.tolist()], asked


def expected(count: int, stamp: int = NO_STAMP) -> list[tuple[int, ...]]:
    return [(0x0D0A_0D0A + number, 5_000_000 + number, stamp, 42) for number in range(count)]


@given(st.integers(1, 60))
def test_nats_acknowledgements(cut: int) -> None:
    good = b'{"stream":"Bench","seq":7}'
    bad = b'{"error":{"code":400}}'
    nobody = b"NATS/1.0 503\r\n\r\n"
    wire = b"PING\r\n" + b"MSG _INBOX.1.1 1 %d\r\n%b\r\n" % (len(good), good) * 3
    wire += b"MSG _INBOX.1.1 1 %d\r\n%b\r\n" % (len(bad), bad)
    wire += b"HMSG _INBOX.1.1 1 %d %d\r\n%b\r\n" % (len(nobody), len(nobody), nobody)
    replies = nats.StreamReplies()
    assert fed(replies, wire, cut) == (5, 2)
    assert "400" in replies.refusal


@given(st.integers(1, 90))
def test_nats_deliveries_with_and_without_headers(cut: int) -> None:
    head = b"NATS/1.0\r\nNats-Scheduler: s.Bench.1\r\n\r\n"
    wire = b""
    for number, body in enumerate(bodies(4)):
        ack = b"$JS.ACK.Bench.c.1.%d.%d.5000777000.0" % (number + 1, number + 1)
        if number % 2:
            wire += b"HMSG out.Bench 2 %b %d %d\r\n%b%b\r\n" % (ack, len(head), len(head) + len(body), head, body)
        else:
            wire += b"MSG out.Bench 2 %b %d\r\n%b\r\n" % (ack, len(body), body)
    wire += b"MSG _INBOX.none 9 2\r\n{}\r\n"
    intake = nats.NatsIntake(Reception(1, "nats", "Bench", 1, ""))
    assert received(intake, wire, cut)[0] == expected(4, 5_000_777)


@given(st.integers(1, 60))
def test_replies_of_one_line(cut: int) -> None:
    replies = lines.LineReplies()
    assert fed(replies, b":1\r\n:12\r\n-LOADING wait\r\nINSERTED 7\r\n+\r\nOUT_OF_MEMORY\r\n", cut) == (6, 2)
    assert replies.refusal == "-LOADING wait"


@given(st.integers(1, 90))
def test_redis_answers_and_the_next_question(cut: int) -> None:
    intake = lines.RedisIntake(Reception(1, "redis", "Bench", 1, ""))
    assert b"EVAL" in intake.tick()
    assert intake.tick() == b""  # one answer is still out
    wire = b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(body), body) for body in bodies(3))
    rows, asked = received(intake, wire, cut)
    assert rows == expected(3)
    assert asked == b""
    assert b"ZRANGEBYSCORE" in intake.tick()
    assert received(intake, b"*0\r\n", cut) == ([], b"")
    assert intake.tick()


def test_redis_asks_at_once_while_there_is_more() -> None:
    intake = lines.RedisIntake(Reception(1, "redis", "Bench", 1, ""))
    body = bodies(1)[0]
    wire = b"*%d\r\n" % intake.MOST + b"$%d\r\n%b\r\n" % (len(body), body) * intake.MOST
    rows, asked = received(intake, wire, 4096)
    assert len(rows) == intake.MOST
    assert b"EVAL" in asked


@given(st.integers(1, 90))
def test_beanstalkd_jobs_are_deleted_as_they_come(cut: int) -> None:
    intake = lines.BeanstalkdIntake(Reception(1, "beanstalkd", "Bench", 1, ""))
    wire = b"WATCHING 2\r\nWATCHING 1\r\n"
    for number, body in enumerate(bodies(3)):
        wire += b"RESERVED %d %d\r\n%b\r\nDELETED\r\n" % (number, len(body), body)
    rows, asked = received(intake, wire, cut)
    assert rows == expected(3)
    assert asked == b"".join(b"delete %d\r\nreserve\r\n" % number for number in range(3))


@given(st.integers(1, 90))
def test_naive_deliveries(cut: int) -> None:
    wire = b"".join(struct.pack(">Iq", len(body), 77) + body for body in bodies(3))
    assert received(lines.NaiveIntake(Reception(1, "naive", "Bench", 1, "")), wire, cut)[0] == expected(3, 77)


@pytest.mark.parametrize(
    ("protocol", "marks"),
    [
        ("nats", [b"HPUB s.Bench.", b"Nats-Schedule: @at 2025-11-13T02:14:", b"Nats-Schedule-Target: out.Bench\r\n"]),
        ("redis", [b"*4\r\n$4\r\nZADD\r\n$13\r\ndelayed:Bench\r\n$13\r\n17630000", b"\r\n$64\r\n"]),
        ("beanstalkd", [b"put 0 0000000060 600 64\r\n"]),
        ("naive", [struct.pack(">I", 64) + b"B"]),
    ],
)
def test_sends_of_each_protocol(protocol: str, marks: list[bytes]) -> None:
    load = Load(port=1, protocol=protocol, body_bytes=64, inbox="_INBOX.1.1")  # type: ignore[arg-type]
    ring = Ring(PROTOCOLS[protocol].templates(load), 2, lambda: NOW_MS, 60_500, 60_501)
    frame = bytes(ring.take(1))
    for mark in marks:
        assert mark in frame
    delay_ms = 60_000 if protocol == "beanstalkd" else 60_500
    assert BODY.pack((NOW_MS + delay_ms) * 1000, 0) in frame


def test_nats_counts_its_bytes() -> None:
    load = Load(port=1, protocol="nats", body_bytes=64, inbox="_INBOX.1.1")
    frame = nats.templates(load)[0].data
    line, _, rest = frame.partition(b"\r\n")
    head, total = map(int, line.split()[-2:])
    assert rest[:head].endswith(b"\r\n\r\n")
    assert len(rest) == total + 2
    assert rest.endswith(b"\r\n")


class FakeSocket:
    """Keeps what is sent to it."""

    def __init__(self) -> None:
        self.sent = b""

    def sendall(self, data: bytes) -> None:
        self.sent += data


def test_naive_sweeps_a_second_when_it_is_over(tmp_path: Path) -> None:
    server = Naive(0, tmp_path)
    sender, consumer = FakeSocket(), FakeSocket()
    server._rests = {sender: b"", consumer: b""}  # type: ignore[dict-item]
    due_us = 4_000_000_000_500_000
    body = BODY.pack(due_us, 1) + b"xyz"
    server.accept(consumer, struct.pack(">I", 0) + b"B")  # type: ignore[arg-type]
    frame = struct.pack(">I", len(body)) + b"B" + body
    server.accept(sender, frame[:9])  # type: ignore[arg-type]
    assert sender.sent == b""
    server.accept(sender, frame[9:])  # type: ignore[arg-type]
    assert sender.sent == b"+\r\n"
    server.sweep(due_us / 1e6)
    assert consumer.sent == b""
    server.sweep(due_us / 1e6 + 0.5)
    assert consumer.sent.endswith(body)
    assert list(tmp_path.iterdir()) == []
    server._listener.close()
