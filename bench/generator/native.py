"""The generator's inner loop in C, for RocketMQ's protocol. It uses little compared with the measured system.

Generator and measured system share the machine, so the generator takes processor time from the system.
`bench.generator.sender` needs several µs of Python for a message when one request is in flight on each connection;
`native.c` needs only the time of its system calls. It does the same: a closed loop with a number of requests in flight,
or an open loop at a rate. One ``send`` carries all requests that a connection may have in flight, one ``recv`` takes
all replies that have arrived, and only length and success of a reply are read. Due times and numbers are written just
before a frame is sent.

The library is compiled with gcc when it is first wanted and kept in the cache folder (`bench.fetching.cache`). Without
gcc `bench.generator.sender` does the work, as it does for other protocols and where the numbers of all acknowledged
messages are wanted.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.fetching.cache import FetchError, cached, run_tool
from bench.figures.stats import weighted_percentile
from bench.generator.load import Load, LoadResult
from bench.generator.ring import BODY_MARK, DUE_MARK, NUMBER_MARK, OPAQUE_MARK, Ring
from bench.generator.rocketmq import templates

__all__ = ["can_run", "library", "run"]

_SOURCE = Path(__file__).with_name("native.c")
_FLAGS = ("-O2", "-D_GNU_SOURCE", "-shared", "-fPIC")
_WAIT_BUCKETS = 64 * 40
_REFUSAL_BYTES = 400
_KINDS = {BODY_MARK: 0, NUMBER_MARK: 1, OPAQUE_MARK: 2, DUE_MARK: 3}
_ERRORS = {1: "the broker closed the connection", 2: "a system call failed", 3: "a reply is longer than 256 KiB"}
_RING_BYTES = 1 << 20
_DRAIN_SECONDS = 30.0
_TICK_SECONDS = 0.0005


class _Load(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("connections", "rows", "size", "batch", "stride", "fields")),
        *((name, ctypes.c_int64) for name in ("due_from_ms", "due_span_ms", "due_at_ms", "in_flight", "most")),
        *((name, ctypes.c_double) for name in ("rate", "seconds", "tick_seconds", "drain_seconds")),
    ]


class _Field(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("at", ctypes.c_int32)]


class _Result(ctypes.Structure):
    _fields_ = [
        ("number", ctypes.c_int64),
        ("random", ctypes.c_uint64),
        *((name, ctypes.c_int64) for name in ("sent", "answered", "refused")),
        *((f"{name}_seconds", ctypes.c_double) for name in ("idle", "loop", "loop_cpu", "all", "behind")),
        ("first_accepted_ms", ctypes.c_double),
        ("waits", ctypes.c_int64 * _WAIT_BUCKETS),
        ("error", ctypes.c_int32),
        ("refusal", ctypes.c_char * (_REFUSAL_BYTES + 1)),
    ]


def can_run(load: Load) -> bool:
    """Whether the library can run this load, and gcc is there to compile it."""
    return load.protocol == "rocketmq" and not load.accepted_path and shutil.which("gcc") is not None


def library() -> ctypes.CDLL:
    """Load the library, compiling it first if need be. Raises FetchError with gcc's last lines."""

    def build(work: Path) -> None:
        run_tool(["gcc", *_FLAGS, "-o", work / "native.so", _SOURCE], cwd=work)

    folder = cached("generator", [_SOURCE, " ".join(_FLAGS), os.uname().machine], build)
    try:
        return ctypes.CDLL(str(folder / "native.so"))
    except OSError as error:
        raise FetchError(f"{folder / 'native.so'} cannot be loaded: {error}") from error


def run(load: Load) -> LoadResult:
    """Send the load and count. Raises ConnectionError if the broker goes away, unless the load is tolerant."""
    sockets: list[socket.socket] = []
    try:
        for number in range(load.connections):
            sockets.append(socket.create_connection(("127.0.0.1", load.port_of(number))))
            sockets[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        number = load.first_number
        if load.warm_up_seconds:
            number = _once(load, sockets, number, load.warm_up_seconds, 0.0).number
        return _result(load, _once(load, sockets, number, load.seconds, load.rate))
    finally:
        for one in sockets:
            one.close()


def _once(load: Load, sockets: list[socket.socket], number: int, seconds: float, rate: float) -> _Result:
    made = templates(load)
    first = made[0]
    rows = max(2, min(4096, _RING_BYTES // len(first.data)))
    ring = Ring(made, rows, lambda: time.time_ns() // 1_000_000, 0, 0)
    fields = (_Field * len(first.fields))(*(_Field(_KINDS[mark], at) for mark, at in first.fields))
    wanted = _Load(
        connections=len(sockets),
        rows=rows,
        size=ring.size,
        batch=first.batch,
        stride=first.stride,
        fields=len(fields),
        due_from_ms=load.due_from_ms,
        due_span_ms=max(1, load.due_to_ms - load.due_from_ms),
        due_at_ms=load.due_at_ms,
        in_flight=load.in_flight,
        most=load.count // load.batch or 1 << 62,
        rate=rate / load.batch,
        seconds=seconds,
        tick_seconds=_TICK_SECONDS,
        drain_seconds=_DRAIN_SECONDS,
    )
    result = _Result(number=number, random=load.seed)
    fds = (ctypes.c_int32 * len(sockets))(*(one.fileno() for one in sockets))
    frames = ring.array.ctypes.data_as(ctypes.c_void_p)
    library().timewheel_run(ctypes.byref(wanted), fields, fds, frames, ctypes.byref(result))
    if result.error and not load.tolerant:
        raise ConnectionError(_ERRORS[result.error])
    return result


def _result(load: Load, result: _Result) -> LoadResult:
    counts = np.ctypeslib.as_array(result.waits)
    p50, p99 = weighted_percentile(list(zip(_bucket_seconds().tolist(), counts.tolist(), strict=True)), (0.5, 0.99))
    accepted = (result.answered - result.refused) * load.batch
    return LoadResult(
        sent=result.sent * load.batch,
        accepted=accepted,
        refused=result.refused * load.batch,
        seconds=round(result.all_seconds, 4),
        per_second=round(accepted / result.all_seconds, 1),
        generator_cpu=round(result.loop_cpu_seconds / result.loop_seconds, 3),
        waited=round(result.idle_seconds / result.loop_seconds, 3),
        reply_p50_us=round(p50 * 1e6, 1),
        reply_p99_us=round(p99 * 1e6, 1),
        behind_ms=round(result.behind_seconds * 1000, 1),
        broken=bool(result.error),
        first_accepted_ms=result.first_accepted_ms,
        refusal=result.refusal.decode("latin-1"),
    )


def _bucket_seconds() -> npt.NDArray[np.float64]:
    """The lower bound of each bucket of waiting times; `bucket_of` in native.c is the other way round."""
    bucket = np.arange(_WAIT_BUCKETS)
    octave, low = bucket // 64 + 5, bucket % 64 + 64
    units = np.where(bucket < 64, bucket.astype(np.float64), np.ldexp(low.astype(np.float64), octave - 6))
    return units / 1e7
