"""Makes CommitLogs with known lateness: millions of delivered delayed messages, one million in a second.

Every record has the same size, as after a steady load of one producer; times, ids and positions differ. The
lateness of message n is ``lateness_ms[n]``, so a pipeline that reads the log has to find exactly these figures::

    python -m bench.log_maker DIRECTORY --records 10000000 --record-bytes 300
    python -m bench.log_maker DIRECTORY --records 10000000 --record-bytes 300 --outage-ms 3600000
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from remoting.layout import OFFSET_AT, QUEUE_OFFSET_AT, RECORD, STORE_MS_AT
from remoting.messages.message import Message, encode_record
from remoting.messages.properties import TW_DUE, TW_ID
from store.disk.delay_id import delay_id, id_text
from store.log.log_scan import blank_record

__all__ = ["main", "make_log", "spread_lateness"]

_FIRST_ID = delay_id(1, 0)
_AT_ONCE = 200_000
_HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
FIRST_DUE_MS = 1_700_000_000_000

Longs = NDArray[np.int64]


def spread_lateness(records: int, seed: int = 1) -> Longs:
    """Draw latenesses like those of a real broker: mostly 0 or 1 ms, with a tail up to some seconds."""
    rng = np.random.default_rng(seed)
    late = rng.geometric(0.7, records).astype(np.int64) - 1
    slow = rng.random(records) < 0.001
    late[slow] = rng.pareto(1.2, int(slow.sum())).astype(np.int64) % 5_000
    return late


def make_log(
    directory: Path,
    lateness_ms: Longs,
    *,
    record_bytes: int = 300,
    topics: int = 4,
    per_second: int = 2_000,
    segment_bytes: int = 1 << 30,
    mark_store: bool = True,
) -> None:
    """Write ``directory/commitlog``: one record for each lateness, in order of storage; ``per_second`` due a second.

    With ``mark_store`` the directory also has the folder by which a store of ours is known.
    """
    (directory / "commitlog").mkdir(parents=True)
    if mark_store:
        (directory / "timewheel").mkdir()
    per_segment = (segment_bytes - 8) // record_bytes
    dues = FIRST_DUE_MS + np.arange(len(lateness_ms), dtype=np.int64) * 1000 // per_second
    order = np.argsort(dues + lateness_ms, kind="stable")
    for at in range(0, max(1, len(lateness_ms)), per_segment):
        base = at // per_segment * segment_bytes
        with open(directory / "commitlog" / f"{base:020d}", "wb") as file:
            part = order[at : at + per_segment]
            for begin in range(0, len(part), _AT_ONCE):
                some = part[begin : begin + _AT_ONCE]
                place = base + begin * record_bytes
                file.write(_records(some, dues[some], lateness_ms[some], place, record_bytes, topics))
            left = segment_bytes - len(part) * record_bytes
            if at + per_segment < len(lateness_ms):
                file.write(blank_record(left))
            file.truncate(segment_bytes)


def _records(numbers: Longs, dues: Longs, late: Longs, position: int, size: int, topics: int) -> bytes:
    table = np.empty((len(late), size), np.uint8)
    for topic in range(topics):
        table[numbers % topics == topic] = np.frombuffer(_template(f"Topic{topic}", size), np.uint8)
    _put_long(table, QUEUE_OFFSET_AT, numbers // topics)
    _put_long(table, OFFSET_AT, position + np.arange(len(late), dtype=np.int64) * size)
    _put_long(table, RECORD.at("born_ms"), dues - 1_000 - numbers % 60_000)
    _put_long(table, STORE_MS_AT, dues + late)
    for place in range(13):
        table[:, size - 2 - place] = dues // 10**place % 10 + 48
    hexadecimal = np.frombuffer(b"0123456789abcdef", np.uint8)
    for place in range(11):
        table[:, size - 25 - place] = hexadecimal[((_FIRST_ID + numbers) >> (4 * place)) & 15]
    return table.tobytes()


def _put_long(table: NDArray[np.uint8], at: int, values: Longs) -> None:
    table[:, at : at + 8] = values.astype(">i8").view(np.uint8).reshape(-1, 8)


def _template(topic: str, size: int) -> bytes:
    marks = f"{TW_ID}\x01{id_text(_FIRST_ID)}\x02{TW_DUE}\x01{FIRST_DUE_MS}\x02"
    text = f"TAGS\x01bench\x02UNIQ_KEY\x01{0:032X}\x02WAIT\x01true\x02{marks}"
    bare = len(encode_record(Message(topic, properties=text), _HOST))
    if size < bare:
        raise ValueError(f"a record of {size} bytes: at least {bare} are needed")
    return encode_record(Message(topic, 0, born_host=_HOST, body=b"x" * (size - bare), properties=text), _HOST)


def main(arguments: list[str] | None = None) -> int:
    """Make one log from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.log_maker", description="Make a log of a known lateness.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--record-bytes", type=int, default=300)
    parser.add_argument("--per-second", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--outage-ms", type=int, default=0, help="lateness evenly from 0 to below this (an outage)")
    options = parser.parse_args(arguments)
    late = spread_lateness(options.records, options.seed)
    if options.outage_ms:
        late = np.random.default_rng(options.seed).integers(0, options.outage_ms, options.records)
    make_log(options.directory, late, record_bytes=options.record_bytes, per_second=options.per_second)
    return 0


if __name__ == "__main__":
    sys.exit(main())
