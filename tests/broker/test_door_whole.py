"""A bulk change by ids over several shards, against a plain list of what each shard has."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.door.peers import Peer, PeerAnswer
from broker.door.whole import Whole
from remoting.hosts import encode_host, message_id
from store.put.pending_api import PendingError

PORTS = (10911, 10921, 10931)
BASE = 1 << 62


def id_of(shard: int, number: int) -> str:
    return message_id(encode_host("127.0.0.1", PORTS[shard]), BASE + number)


class Shards:
    """Three shards; each has messages by id and by key. ``down`` do not answer when a change is carried out."""

    def __init__(self, waiting: list[tuple[int, int]], down: set[int]) -> None:
        self.down = down
        self.waiting: list[set[str]] = [set(), set(), set()]
        for shard, number in waiting:
            self.waiting[shard] |= {id_of(shard, number), f"key:{number}"}
        self.there = [Peer(n, f"b-{n}", f"127.0.0.1:{port}", "127.0.0.1:1") for n, port in enumerate(PORTS)]
        self.changed: list[tuple[int, str]] = []

    async def all(self) -> list[Peer]:
        return self.there

    async def ask(self, peer: Peer, _request: Any, _query: Any, body: dict[str, Any]) -> PeerAnswer:
        await asyncio.sleep(0)
        if peer.index in self.down and not body["dry_run"]:
            return PeerAnswer(peer, 503, {"error": "it does not answer"})
        answers, gone = [], set()
        for name in body["ids"]:
            if name not in self.waiting[peer.index]:
                verdict = "unknown"
            elif body["dry_run"]:
                verdict = "done"
            else:
                verdict = "already" if name in gone else "done"
                gone.add(name)
                self.changed.append((peer.index, name))
            answers.append({"name": name, "verdict": verdict, "due_ms": None, "when_ms": 5})
        return PeerAnswer(peer, 200, {"answers": answers})

    def bulk(self, order: dict[str, Any]) -> dict[str, Any]:
        whole: Any = Whole(self, lambda: 0)  # type: ignore[arg-type]
        request = SimpleNamespace(match_info={"verb": "cancel"})
        return json.loads(asyncio.run(whole._bulk_named(request, [], order)).body)  # type: ignore[no-any-return]


MESSAGES = st.tuples(st.integers(0, 2), st.integers(0, 3))
NAMES = st.one_of(MESSAGES.map(lambda one: id_of(*one)), st.integers(0, 3).map(lambda number: f"key:{number}"))


@given(
    st.lists(MESSAGES, max_size=8),
    st.lists(NAMES, min_size=1, max_size=9),
    st.sets(st.integers(0, 2), max_size=3),
    st.booleans(),
)
def test_each_name_has_its_answer_in_its_place(
    waiting: list[tuple[int, int]], ids: list[str], down: set[int], dry_run: bool
) -> None:
    shards = Shards(waiting, down)
    try:
        found = shards.bulk({"ids": ids, "topic": "T", "dry_run": dry_run})
    except Exception as error:  # every shard that was asked is down
        asked = {int(n) for name in ids for n in ([0, 1, 2] if name.startswith("key:") else [_shard(name)])}
        assert (dry_run, asked <= down) == (False, True), error
        assert shards.changed == []
        return
    assert found["dry_run"] is dry_run
    assert [row["name"] for row in found["answers"]] == ids
    for name, row in zip(ids, found["answers"], strict=True):
        may = [0, 1, 2] if name.startswith("key:") else [_shard(name)]
        up = [shard for shard in may if dry_run or shard not in down]
        has = [shard for shard in up if name in shards.waiting[shard]]
        assert ("error" in row) is (len(up) < len(may))
        if not up:
            assert "verdict" not in row
            continue
        assert (row["verdict"] in ("done", "already")) is bool(has)
        assert len(row.get("others", ())) == max(0, len(has) - 1)
    assert sum(found["verdicts"].values()) == sum("verdict" in row for row in found["answers"])
    if dry_run:
        assert shards.changed == []


def _shard(name: str) -> int:
    return next(shard for shard in range(3) if name[:16] == id_of(shard, 0)[:16])


@pytest.mark.parametrize("wrong", ["no", 0, None, [], {}])
def test_what_is_neither_true_nor_false_is_refused(wrong: Any) -> None:
    """It was taken for a dry run, and told back."""
    shards = Shards([(0, 1)], set())
    with pytest.raises(PendingError, match="true or false"):
        shards.bulk({"ids": [id_of(0, 1)], "dry_run": wrong})


def test_nothing_is_answered_where_no_shard_is() -> None:
    shards = Shards([], set())
    shards.there = []
    with pytest.raises(PendingError, match="no shard is there"):
        shards.bulk({"ids": ["key:a"], "topic": "T"})


def test_what_shards_have_passed_over_in_a_change_by_query_is_added_up() -> None:
    class Passing(Shards):
        async def ask(self, peer: Peer, _request: Any, _query: Any, body: dict[str, Any]) -> PeerAnswer:
            assert body["after"] == ""
            document = {"dry_run": True, "verdicts": {"done": 1}, "looked_at": 1, "answers": [], "next": None}
            remark = f"run {peer.index}" if peer.index else None
            return PeerAnswer(peer, 200, {**document, "unread": peer.index, "remark": remark})

    async def read() -> bytes:
        return b'{"query": {"topic": "T"}}'

    whole: Any = Whole(Passing([], set()), lambda: 0)  # type: ignore[arg-type]
    request = SimpleNamespace(match_info={"verb": "cancel"}, read=read)
    found = json.loads(asyncio.run(whole._bulk(request, [])).body)
    assert (found["verdicts"], found["unread"], found["remark"]) == ({"done": 3}, 3, "b-1: run 1; b-2: run 2")
