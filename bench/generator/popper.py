"""The measuring consumer that pops, as a process: ``python -m bench.generator.popper``.

Reads a `PopTask` as one line of JSON. What it does then is the task's ``kind``:

=========  ========================================================================================================
``drain``  pops 32 at a time and acknowledges them, with the next pop in the same write; a group that has got all of
           the topic is followed by a new one, until the time is up: the rate
``hold``   pops ``count`` messages and acknowledges none: memory
``again``  acknowledges no message that it sees for the first time; when that comes again, notes a row (number, due,
           stored, received) and acknowledges it: lateness. Due is what the first pop's reply says, ``popTime`` and
           ``invisibleTime``. It says ``ready`` first, and ends as `bench.generator.receiver` does
=========  ========================================================================================================
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import socket
import struct
import sys
import time
from typing import Any

import numpy as np

from bench.generator.pop_frames import (
    ACK,
    POP,
    ack_frame,
    batch_ack_frame,
    frame,
    pop_frame,
    portion_of,
    records,
    taken_by_queue,
)
from bench.generator.receiver import GRACE_SECONDS, first_line

__all__ = ["PopTask", "Popper", "main"]

UPDATE_GROUP = 200
_LENGTH = struct.Struct(">i")
_DRAIN_POLL_MS = 100  # a pop that is out when all is taken is answered after that
_LONG_POLL_MS = 15_000
_LAST_MS = 2_000  # what is popped so shortly before the moment at which all times are to end has a time of its own
_POPPED, _ACKED, _DONE = b'"opaque":%d' % POP, b'"opaque":%d' % ACK, b'"code":0'


@dataclasses.dataclass(slots=True)
class PopTask:
    """What to do; times are milliseconds unless the name says otherwise.

    ``count`` messages are in the topic. With ``end_ms``, an epoch millisecond, the invisible times end then, else
    ``invisible_ms`` after each pop. ``one_ack``: one BATCH_ACK_MESSAGE for each pop, else an ACK_MESSAGE for each
    message. ``store_path`` gets the rows of ``again`` as a .npy file.
    """

    port: int
    topic: str
    group: str
    kind: str
    connections: int = 8
    count: int = 0
    seconds: float = 30.0
    invisible_ms: int = 60_000
    end_ms: int = 0
    one_ack: bool = True
    store_path: str = ""

    @classmethod
    def of(cls, values: dict[str, Any]) -> PopTask:
        """Read what `dataclasses.asdict` wrote."""
        return cls(**values)


class _Line:
    """One connection."""

    __slots__ = ("rest", "sock", "waits")

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        self.waits = 0  # requests that are not answered yet

    def write(self, data: bytes, requests: int) -> None:
        """Send encoded requests and count them as not answered. Raises OSError."""
        self.waits += requests
        self.sock.sendall(data)

    def read(self) -> list[bytes]:
        """Return whole frames, without their length."""
        data = self.sock.recv(1 << 20)
        if not data:
            raise ConnectionError("the broker closed the connection")
        data = self.rest + data if self.rest else data
        at, found = 0, []
        while at + 4 <= len(data):
            after = at + 4 + _LENGTH.unpack_from(data, at)[0]
            if after > len(data):
                break
            found.append(data[at + 4 : after])
            at = after
        self.rest = data[at:]
        self.waits -= len(found)
        return found


class Popper:
    """Does one task over several connections, each with one pop out at a time."""

    def __init__(self, task: PopTask) -> None:
        self._task = task
        self._group = task.group
        self._lines = {line.sock.fileno(): line for line in (_Line(task.port) for _ in range(task.connections))}
        self._poll = select.poll()
        for fd in self._lines:
            self._poll.register(fd, select.POLLIN)
        self._asks = True  # whether an answered pop is followed by another
        self._took = self._acked = self._refused = 0
        self._refusal = ""
        self._last = 0.0
        self._due_us: dict[int, int] = {}
        self._rows: list[tuple[int, int, int, int]] = []

    def run(self) -> dict[str, Any]:
        """Do the task; say what came of it."""
        begin, used = time.perf_counter(), time.process_time()
        seconds = self._drain() if self._task.kind == "drain" else self._hold()
        return {
            "took": self._took,
            "acked": self._acked,
            "refused": self._refused,
            "refusal": self._refusal,
            "seconds": round(seconds, 4),
            "per_second": round((self._acked if self._task.kind == "drain" else self._took) / max(1e-9, seconds), 1),
            "generator_cpu": round((time.process_time() - used) / (time.perf_counter() - begin), 3),
        }

    # ------------------------------------------------------------------------------------------------ the tasks

    def _drain(self) -> float:
        """Pop and acknowledge all of the topic for one group after the other; seconds that was done for."""
        task, worked, number = self._task, 0.0, 0
        end = time.perf_counter() + task.seconds
        while time.perf_counter() < end:
            self._group = f"{task.group}-{number}"
            number += 1
            self._make_group()
            goal = self._acked + task.count
            begin = self._last = time.perf_counter()
            self._asks = True
            self._pop_all()
            while self._acked < goal and time.perf_counter() < end:
                self._turn(_DRAIN_POLL_MS)
            self._asks = False
            while any(line.waits for line in self._lines.values()):
                self._turn(_DRAIN_POLL_MS)
            worked += self._last - begin
        return worked

    def _hold(self) -> float:
        """Pop ``count`` messages; seconds that took."""
        task = self._task
        self._make_group()
        begin = self._last = time.perf_counter()
        self._pop_all()
        while self._took < task.count and time.perf_counter() - begin < task.seconds:
            self._turn(_DRAIN_POLL_MS)
        return self._last - begin

    def again(self) -> int:
        """See what comes again, until the parent says how much that is and it has come; how many rows."""
        expect, until_ms, done_at = 1 << 62, float("inf"), float("inf")
        self._make_group()
        self._pop_all()
        print("ready", flush=True)
        self._poll.register(0, select.POLLIN)
        while (now := time.time()) * 1000 < until_ms and now < done_at:
            if self._turn(100):
                text = os.read(0, 4096)
                if text:
                    said = json.loads(text.splitlines()[-1])
                    expect, until_ms = said["expect"], said["until_ms"]
                else:
                    self._poll.unregister(0)
            if len(self._rows) >= expect:
                done_at = min(done_at, now + GRACE_SECONDS)
        np.save(self._task.store_path, np.array(self._rows, np.int64).reshape(-1, 4))
        return len(self._rows)

    # ------------------------------------------------------------------------------------------------ the wire

    def _make_group(self) -> None:
        line = next(iter(self._lines.values()))
        line.write(frame(UPDATE_GROUP, 1, {}, json.dumps({"groupName": self._group}).encode()), 1)
        while not line.read():
            pass

    def _pop_all(self) -> None:
        for line in self._lines.values():
            line.write(self._pop(), 1)

    def _pop(self) -> bytes:
        task, now_ms = self._task, time.time_ns() // 1_000_000
        left_ms = task.end_ms - now_ms
        invisible_ms = left_ms if left_ms >= _LAST_MS else task.invisible_ms
        # Before that moment a pop must not wait: its invisible time would end later.
        poll_ms = _LONG_POLL_MS if task.kind == "again" and left_ms < 0 else _DRAIN_POLL_MS
        return pop_frame(task.topic, self._group, now_ms, invisible_ms, poll_ms)

    def _turn(self, wait_ms: int) -> bool:
        """Read what has come, and go on; whether the parent has said something."""
        came = [fd for fd, _ in self._poll.poll(wait_ms)]
        for fd in came:
            line = self._lines.get(fd)
            if line is None:
                continue
            frames = line.read()
            received_us = time.time_ns() // 1000  # taken before, it would be early for what came meanwhile
            for data in frames:
                size = int.from_bytes(data[1:4], "big")
                if data.find(_POPPED, 4, 4 + size) >= 0:
                    self._popped(line, json.loads(data[4 : 4 + size]), data[4 + size :], received_us)
                elif data.find(_ACKED, 4, 4 + size) >= 0:
                    self._answered(data[4 : 4 + size])
        return 0 in came

    def _answered(self, header: bytes) -> None:
        self._last = time.perf_counter()
        if _DONE not in header:
            self._refused += 1
            self._refusal = self._refusal or header[:400].decode(errors="replace")

    def _popped(self, line: _Line, header: dict[str, Any], body: bytes, received_us: int) -> None:
        out: list[bytes] = []
        if header["code"] == 0:
            ext = header["extFields"]
            out = self._noted(ext, body, received_us) if self._task.kind == "again" else self._taken(ext)
            if self._task.kind == "hold":
                self._last = time.perf_counter()
        elif header["code"] not in (208, 209, 210, 211) and not self._refusal:
            self._refusal = str(header)[:400]
        if self._asks:
            out.append(self._pop())
        if out:
            line.write(b"".join(out), len(out))

    def _taken(self, ext: dict[str, str]) -> list[bytes]:
        """Write the acknowledgements of a pop."""
        task, all_taken = self._task, taken_by_queue(ext)
        count = sum(len(taken.offsets) for taken in all_taken)
        self._took += count
        if task.kind == "hold":
            return []
        self._acked += count
        if task.one_ack:
            return [batch_ack_frame(task.topic, self._group, all_taken)]
        return [ack_frame(task.topic, self._group, taken, offset) for taken in all_taken for offset in taken.offsets]

    def _noted(self, ext: dict[str, str], body: bytes, received_us: int) -> list[bytes]:
        """Note what has come, for the first time or again."""
        due_us = (int(ext["popTime"]) + int(ext["invisibleTime"])) * 1000
        again: dict[tuple[bytes, int], list[int]] = {}
        unnamed = False
        for number, stored_ms, lead, queue_id, offset in records(body):
            known = number in self._due_us
            first_us = self._due_us.setdefault(number, due_us)
            self._took += 1
            if lead or known:
                self._rows.append((number, first_us, stored_ms * 1000, received_us))
                unnamed |= not lead
            if lead:  # of one pop and queue one entry acknowledges all, as Apache's client has it
                offsets = again.get((lead, queue_id))
                if offsets is None:
                    again[lead, queue_id] = [offset]
                else:
                    offsets.append(offset)
        all_taken = [portion_of(lead, queue_id, offsets) for (lead, queue_id), offsets in again.items()]
        if unnamed:  # with its pops in RocksDB Apache's broker names the handles in the header alone
            all_taken += [taken for taken in taken_by_queue(ext) if taken.retry != "0"]
        return [batch_ack_frame(self._task.topic, self._group, all_taken)] if all_taken else []


def main() -> int:
    """Do one task as the parent says."""
    task = PopTask.of(json.loads(first_line()))
    popper = Popper(task)
    result = {"rows": popper.again()} if task.kind == "again" else popper.run()
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
