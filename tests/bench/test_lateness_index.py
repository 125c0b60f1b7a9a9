"""The lateness report reads indexes of the delay store as it reads runs."""

from __future__ import annotations

from pathlib import Path

from bench.lateness.logs.spill_files import Look, plan_spill, read_spill_file
from bench.lateness.logs.storage import storage_for
from remoting.messages.message import Message, encode_record
from store.disk.files import Files
from store.spill.rows.model import SpillOptions
from store.spill.spill_store import SpillStore

NOW_MS = 1_700_000_000_000
COUNT = 60


def test_what_is_pending_and_overdue_in_an_index(tmp_path: Path) -> None:
    folder = tmp_path / "timewheel" / "delay"
    options = SpillOptions(segment_bytes=4_000, page_bytes=300)
    store = SpillStore.open(Files(), folder, bytes(range(16)), options, None)
    ids = []
    for number in range(COUNT):
        ids.append(store.next_id())
        record = encode_record(Message(f"T{number % 2}", body=b"body", born_ms=number), bytes(8))
        block = store.append([(NOW_MS + 60_000 - number, ids[-1], record)])
        with store.lock:
            store.publish(block)
    while store.spill_step(NOW_MS):
        pass
    store.journal.sync()
    store.close()
    storage = storage_for(str(tmp_path))
    files = plan_spill(str(tmp_path), storage)
    assert [file.data for file in files if file.data]
    live, overdue = set(), {}
    for file in files:
        for rows in read_spill_file(storage, file, Look(NOW_MS + 60_000 - 30)):
            live |= set(rows.ids[rows.live].tolist())
            overdue |= {rows.ids.item(index): value for index, value in rows.overdue.items()}
    assert live == set(ids)
    assert overdue == {ids[number]: (b"T%d" % (number % 2), number) for number in range(30, COUNT)}
