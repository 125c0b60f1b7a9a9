"""What is pending by topic, against a plain list: over several calls, after cancels, moves and kills; and in time."""

from __future__ import annotations

import pytest

from broker_plugin.pending import foresight, looking
from store.put.pending_api import PendingError, PendingQuery, PendingVerb
from tests.broker_plugin.test_pending_desk import NOW, Desk

Row = tuple[int, int, int]
"""How many, first and last due."""


def counted(desk: Desk, query: PendingQuery) -> tuple[dict[str, Row], dict[str, int], int]:
    """Add up over all calls: rows, bytes, calls."""
    rows: dict[str, Row] = {}
    sizes: dict[str, int] = {}
    after, calls = "", 0
    while calls == 0 or after:
        found = desk.desk.by_topic(query, after)
        after, calls = found.next, calls + 1
        assert [row.count for row in found.rows] == sorted((row.count for row in found.rows), reverse=True)
        for row in found.rows:
            count, first, last = rows.get(row.topic, (0, row.first_due_ms, row.last_due_ms))
            rows[row.topic] = count + row.count, min(first, row.first_due_ms), max(last, row.last_due_ms)
            sizes[row.topic] = sizes.get(row.topic, 0) + row.bytes
    return rows, sizes, calls


@pytest.mark.parametrize("seed", range(6))
def test_sums_by_topic_are_those_of_a_list(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresight, "READ_MAX", 40)
    monkeypatch.setattr(foresight, "TOPICS_AT_ONCE", 3 + seed % 2 * 100)
    monkeypatch.setattr(looking, "SLICE_MIN", 8)
    monkeypatch.setattr(looking, "SLICE", 8)
    desk = Desk(seed + 70)
    rng = desk.world.rng
    waits: dict[int, tuple[str, int]] = {}
    for _ in range(8):
        for _ in range(rng.randrange(1, 40)):
            topic, due_ms = f"T{rng.randrange(6)}", NOW + 20_000 + rng.randrange(60_000)
            waits[desk.send(due_ms, topic, body=bytes(rng.randrange(120)))] = topic, due_ms
        for offset in rng.sample(sorted(waits), min(3, len(waits))):
            if rng.random() < 0.5:
                desk.change(offset)
                del waits[offset]
            else:
                topic, _ = waits[offset]
                waits[offset] = topic, desk.change(offset, PendingVerb.MOVE, by_ms=rng.randrange(-900, 900)).due_ms
        desk.world.run(rng.choice((50, 900)))
        if rng.random() < 0.2:
            desk.world.kill()
        from_ms = NOW + 20_000 + rng.randrange(60_000)
        for query in (PendingQuery(), PendingQuery(topic="T1"), PendingQuery(due_from_ms=from_ms)):
            plain: dict[str, list[int]] = {}
            for topic, due_ms in waits.values():
                if query.topic in ("", topic) and due_ms >= (query.due_from_ms or 0):
                    plain.setdefault(topic, []).append(due_ms)
            rows, sizes, _ = counted(desk, query)
            assert rows == {topic: (len(dues), min(dues), max(dues)) for topic, dues in plain.items()}
            for topic in rows:
                of_topic = PendingQuery(topic=topic, due_from_ms=query.due_from_ms)
                parts, after = 0, ""
                while True:
                    part = desk.desk.count(of_topic, after)
                    parts, after = parts + part.bytes, part.next
                    if not after:
                        break
                assert sizes[topic] == parts


def test_a_call_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(71)
    for number in range(600):
        desk.send(NOW + 60_000 + number, f"T{number % 2}")
    assert counted(desk, PendingQuery())[2] == 1
    monkeypatch.setattr(foresight, "TOPICS_AT_ONCE", 2)
    assert counted(desk, PendingQuery())[2] > 1
    monkeypatch.undo()
    passed = [0]
    desk.desk.pause_by(lambda: passed.append(passed.pop() + looking.CALL_NS), passed_ns=lambda: passed[0])
    rows, _, calls = counted(desk, PendingQuery())
    assert {topic: row[0] for topic, row in rows.items()} == {"T0": 300, "T1": 300}
    assert calls > 1, "each slice took the time of a call"


def test_the_forecast_of_a_topic_ends_in_time() -> None:
    """It read up to 200,000 messages, however long that took."""
    desk = Desk(72)
    for number in range(600):
        desk.send(NOW + 60_000 + number)
    whole = desk.desk.forecast(NOW + 60_000, NOW + 61_000, 10, "T")
    assert whole.total == 600
    passed = [0]
    desk.desk.pause_by(lambda: passed.append(passed.pop() + looking.CALL_NS), passed_ns=lambda: passed[0])
    with pytest.raises(PendingError, match="within 8 s: take a shorter range"):
        desk.desk.forecast(NOW + 60_000, NOW + 61_000, 10, "T")
    assert desk.desk.forecast(NOW + 60_000, NOW + 60_050, 10, "T").total == 50, "one slice is always read"
