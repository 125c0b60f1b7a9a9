"""What became of each message, from rows in any order and any packing, against a count that goes message by message."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from bench.lateness.logs.delays import ACCEPTED, CANCELLED, DELIVERED, LIVE, SEEN
from tests.support.lateness_world import class_of

pytestmark = pytest.mark.spark  # it needs pyarrow, and starts nothing

AS_OF_MS = 50_000
GIVEN_BACK = (1,)
FIELDS = (
    "source",
    "stage",
    "kind",
    "level",
    "id_hi",
    "id_lo",
    "topic_id",
    "due_ms",
    "requested_ms",
    "offset",
    "store_ms",
)

Row = dict[str, Any]


def some_rows(rng: random.Random, count: int, ids: int) -> list[Row]:
    """Rows as logs and delay stores give them: few ids, so that they meet; positions that differ."""
    rows = []
    for position in rng.sample(range(10 * count), count):
        stage = rng.choice([ACCEPTED, DELIVERED, DELIVERED, CANCELLED, LIVE, SEEN])
        due = rng.choice([None, rng.randrange(100_000), rng.randrange(100_000)])
        numbers = {"source": rng.randrange(3), "id_hi": rng.choice([0, 0, -5, 1 << 62]), "id_lo": rng.randrange(ids)}
        store_ms = rng.randrange(100_000) if stage == DELIVERED else None
        told = {"topic_id": rng.choice([None, -7, 9]), "requested_ms": rng.choice([None, 0, 3, 1_000, 10**12])}
        place = {"kind": rng.choice([1, 2]), "level": rng.randrange(4), "offset": position, "store_ms": store_ms}
        rows.append({**numbers, **told, **place, "stage": stage, "due_ms": due})
    return rows


def batch_of(rows: list[Row]) -> Any:
    import pyarrow as pa

    from bench.lateness.logs.schemas import DELAY_SCHEMA, arrow_schema

    return pa.RecordBatch.from_pylist([{"text": None, **row} for row in rows], schema=arrow_schema(DELAY_SCHEMA))


def settled(rows: list[Row], rng: random.Random, parts: int) -> list[Row]:
    """Packed by several tasks, brought together by part, settled."""
    from bench.lateness.counting.settle import Choice, settle
    from bench.lateness.logs.packing import pack

    by_part: dict[int, list[Any]] = {}
    for task in range(3):
        own = rows[task::3]
        batches = [batch_of(own[at : at + 7]) for at in range(0, len(own), 7)]
        for batch in pack(batches, parts):
            for row in range(len(batch)):
                by_part.setdefault(batch.column("part")[row].as_py(), []).append(batch.slice(row, 1))
    assert set(by_part) <= set(range(parts))
    found: list[Row] = []
    for batches in by_part.values():
        rng.shuffle(batches)
        for batch in settle(batches, Choice(AS_OF_MS, 2_000, 90_000, GIVEN_BACK)):
            found += batch.to_pylist()
    return found


def by_hand(rows: list[Row]) -> Row:
    """One message, from all its rows."""
    rows = sorted(rows, key=lambda row: int(row["offset"]))
    stages = [row["stage"] for row in rows]
    deliveries = [row for row in rows if row["stage"] == DELIVERED]
    lives = [row for row in rows if row["stage"] == LIVE][-1:]
    told = rows[: stages.index(DELIVERED) + 1] if deliveries else rows
    accepted = [row for row in told if row["stage"] in (ACCEPTED, SEEN)][:1]
    dues = [row["due_ms"] for row in (*deliveries[:1], *lives, *accepted) if row["due_ms"] is not None]
    due = dues[0] if dues else None
    waits = ACCEPTED in stages or LIVE in stages
    if due is not None and not 2_000 <= due < 90_000:
        state = "outside"
    elif deliveries:
        state = "undated" if due is None else "delivered"
    elif CANCELLED in stages:
        state = "cancelled"
    elif waits:
        state = "undated" if due is None else "overdue" if due <= AS_OF_MS else "pending"
    else:
        state = "unknown" if rows[0]["source"] in GIVEN_BACK and rows[0]["id_hi"] == 0 else "lost"
    late = None
    if state in ("delivered", "overdue"):
        assert due is not None
        late = (deliveries[0]["store_ms"] if deliveries else AS_OF_MS) - due
    highest = {
        name: max((row[name] for row in told if row[name] is not None), default=None)
        for name in ("kind", "level", "topic_id", "requested_ms")
    }
    first = deliveries[0] if deliveries else {"offset": None, "store_ms": None}
    stored = [row for row in rows if row["stage"] == ACCEPTED][:1]
    return {
        "id_hi": rows[0]["id_hi"], "id_lo": rows[0]["id_lo"],
        "place": next((row["offset"] for row in (*deliveries[:1], *stored)), None),
        "source": rows[0]["source"], "stage": None, "state": state, "offset": first["offset"],
        "store_ms": first["store_ms"], "due_ms": due, "text": None, "lateness_ms": late,
        "censored": state == "overdue", "repeats": max(0, len(deliveries) - 1), **highest,
    }  # fmt: skip


def counted(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(sorted(row.items(), key=lambda item: item[0])) for row in rows)


@pytest.mark.parametrize("seed", range(12))
def test_every_message_is_settled_as_by_hand(seed: int) -> None:
    rng = random.Random(seed)
    rows = some_rows(rng, rng.choice([1, 20, 400]), rng.choice([3, 60, 10_000]))
    groups: dict[tuple[int, int, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["source"], row["id_hi"], row["id_lo"]), []).append(row)
    assert counted(settled(rows, rng, rng.choice([1, 2, 5]))) == counted([by_hand(group) for group in groups.values()])


def test_ids_that_come_once_take_the_short_way_to_the_same_result() -> None:
    rng = random.Random(3)
    rows = [{**row, "id_lo": number, "id_hi": 0, "source": 1} for number, row in enumerate(some_rows(rng, 300, 9))]
    rng.shuffle(rows)
    assert counted(settled(rows, rng, 1)) == counted([by_hand([row]) for row in rows])


def sums_in(batch: Any) -> Iterator[Row]:
    """The rows of a batch of sums, those that are packed one by one."""
    from bench.lateness.counting.sums import decode
    from bench.lateness.logs.packing import NONE

    for row in batch.to_pylist():
        if row["packed"] is None:
            yield row
            continue
        columns = decode(row["packed"])
        for values in zip(*(column.tolist() for column in columns.values()), strict=True):
            found = {name: None if value == NONE else value for name, value in zip(columns, values, strict=True)}
            yield row | found | {"censored": None if found["censored"] is None else bool(found["censored"])}


@pytest.mark.parametrize("seed", range(4))
def test_every_sum_holds_every_message_that_it_speaks_of(seed: int) -> None:
    import pyarrow as pa

    from bench.lateness.counting.settle import add_up
    from bench.lateness.logs.schemas import MESSAGE_SCHEMA, arrow_schema

    buckets = seed % 2 * 2 + 1

    rng = random.Random(seed)
    found = settled(some_rows(rng, 300, 200), rng, 3)
    notes = [{"source": 2, "stage": 10, "topic_id": 9, "text": "Orders"}] * 2
    batch = pa.RecordBatch.from_pylist(found + notes, schema=arrow_schema(MESSAGE_SCHEMA))
    tables: dict[str, Counter[tuple[Any, ...]]] = {}
    latest: dict[tuple[int, bool], int] = {}
    for part in add_up([batch.slice(0, 100), batch.slice(100)], buckets):
        for row in sums_in(part):
            assert 0 <= (row["bucket"] or 0) < buckets
            group = (row["source"], row["key"], row["text"], row["lateness_ms"], row["censored"])
            tables.setdefault(row["table"], Counter())[group] += row["count"]
            if row["table"] == "latest":
                key = row["source"], row["censored"]
                latest[key] = max(row["lateness_ms"], latest.get(key, row["lateness_ms"]))
                continue
            if row["table"] == "topic":
                assert row["kind"] is not None
    timed = [row for row in found if row["lateness_ms"] is not None]

    def of(row: Row, key: int | None) -> tuple[Any, ...]:
        return row["source"], key, None, class_of(row["lateness_ms"], row["censored"]), row["censored"]

    def lower(value: int | None) -> int | None:
        bounds = [0, *(step * 10**power for power in range(18) for step in (1, 2, 5))]
        return None if value is None else max(bound for bound in bounds if bound <= value)

    assert tables["topic"] == Counter(of(row, None) for row in timed)
    assert tables["ms_in_second"] == Counter(of(row, row["due_ms"] % 1000) for row in timed)
    assert tables["pairs"] == Counter(of(row, row["due_ms"] // 1000) for row in timed)
    seconds = Counter((row["source"], row["due_ms"] // 1000, None, None, None) for row in timed)
    assert tables["second"] == seconds
    assert tables["minute"] == Counter(of(row, row["due_ms"] // 60_000 * 60_000) for row in timed)
    assert tables["requested"] == Counter(of(row, lower(row["requested_ms"])) for row in timed)
    kinds = {(row["source"], row["censored"]) for row in timed}
    assert latest == {
        kind: max(row["lateness_ms"] for row in timed if (row["source"], row["censored"]) == kind) for kind in kinds
    }
    assert tables["notes"] == {(2, 10, "Orders", None, None): 2}
    early = [int((row["lateness_ms"] or 0) < 0) for row in found]
    states = Counter((row["source"], key, row["state"], None, None) for row, key in zip(found, early, strict=True))
    assert tables["counts"] == states
