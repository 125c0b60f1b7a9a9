"""Tries to send to a system that is starting, until it accepts a message."""

from __future__ import annotations

import dataclasses
import socket
import time

from bench.generator.load import Load
from bench.generator.protocols import PROTOCOLS
from bench.generator.ring import Ring

__all__ = ["first_accepted"]

_RETRY_SECONDS = 0.002


def first_accepted(load: Load, seconds: float) -> float | None:
    """Return the seconds from now until a message was acknowledged; None if none was within ``seconds``."""
    speech = PROTOCOLS[load.protocol]
    if load.protocol == "naive":
        load = dataclasses.replace(load, kind="timed")
    ring = Ring(speech.templates(load), 8, lambda: time.time_ns() // 1_000_000, load.due_from_ms, load.due_to_ms)
    begin = time.perf_counter()
    while (waited := time.perf_counter() - begin) < seconds:
        try:
            with socket.create_connection(("127.0.0.1", load.port), 1) as sock:
                speech.hello(sock, load)
                replies = speech.replies()
                sock.settimeout(min(5.0, seconds - waited))
                sock.sendall(ring.take(1))
                answered = refused = 0
                while not answered:
                    data = sock.recv(65536)
                    if not data:
                        break
                    answered, refused = replies.feed(data)
                if answered > refused:
                    return time.perf_counter() - begin
        except OSError:
            pass
        time.sleep(_RETRY_SECONDS)
    return None
