"""The API of an instance in the simulated world: answers, of which shards they are, verdicts, bad input, limits."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from http_door.guard import BODY_MAX_BYTES
from service.door import api, app, orders, reading
from service.door.app import why_health_only
from service.door.coverage import ShardSight, Sighting
from service.door.reading import by_topic, counted, cursors_of_shards
from store.disk.errors import StoreError
from store.put.pending_api import PendingError, PendingQuery
from store.put.pending_topics import TopicSums
from tests.service.door_world import BASE_MS, FAR, ME, OTHERS, DoorWorld
from tests.support.door import ask
from tests.support.plain_pending import PlainPending, row

OPENAPI = json.loads(files("service.door").joinpath("openapi.json").read_text())
TOKEN = "a-token-of-sixteen-or-more"
MINE, FOLLOWED = "broker-e/0", "broker-e/1"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DoorWorld]:
    with DoorWorld(tmp_path) as made:
        yield made


# ------------------------------------------------------------------------------------------------ of which shards


def test_every_answer_says_which_shards_it_is_of(world: DoorWorld) -> None:
    world.send(60_000, 70_000)
    for path in ("pending", "pending/count", "pending/forecast"):
        found = world.get(path).json
        assert found["whole"] is False, path
        states = {one["shard"]: (one["state"], one["owner"]) for one in found["shards"]}
        assert states == {MINE: ("owned", ME), FOLLOWED: ("followed", OTHERS), FAR: ("missing", OTHERS)}
    assert world.get("pending/count").json["count"] == 12
    world.forgotten = {FOLLOWED, FAR}
    found = world.get("pending/count").json
    assert (found["count"], found["whole"]) == (2, False)
    world.forgotten = set()
    world.followed.rows.append(row(99, world.at(99_000)))
    found = world.get("overview").json
    assert (found["whole"], found["pending"]["count"]) == (False, 13), "the last one is still somebody else's"


def test_where_nothing_is_known_nothing_is_counted_as_none(world: DoorWorld) -> None:
    world.forgotten = {MINE, FOLLOWED, FAR}
    for path in ("pending", "pending/count", "pending/forecast"):
        answer = world.get(path)
        assert answer.status == 503
        assert OTHERS in answer.json["error"], "whom to ask"
    overview = world.get("overview").json
    assert overview["whole"] is False
    assert {one["count"] for one in overview["shards"]} == {None}
    assert set(overview["pending"].values()) == {None}, "a sum over no shard is not known: it is no nought"
    world.view.begun = False
    for path in ("pending/count", f"pending/{MINE}/7"):
        assert (world.get(path).status, world.get(path).json["error"]) == (503, "it has not begun")


def test_a_shard_that_is_given_up_meanwhile_is_told_as_missing(world: DoorWorld) -> None:
    world.send(60_000)

    def closed(*_: Any) -> Any:
        raise StoreError("the spill store is closed")

    for name in ("count", "page", "forecast", "figures"):
        setattr(world.followed, name, closed)
    for path in ("pending", "pending/count", "pending/forecast"):
        found = world.get(path).json
        assert [one["state"] for one in found["shards"]] == ["owned", "missing", "missing"], path
        assert "given up" in found["shards"][1]["detail"]
    assert [one["count"] for one in world.get("overview").json["shards"]] == [1, None, None]


# ------------------------------------------------------------------------------------------------ many entries


def test_page_by_page_is_the_list_over_all_shards(world: DoorWorld) -> None:
    names = world.send(*(60_000 + 700 * n for n in range(40)))
    wanted = sorted([*(world.at(60_000 + 700 * n) for n in range(40)), *(one.due_ms for one in world.followed.rows)])
    for limit in (1, 7, 16, 100):
        seen: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None:
            found = world.get(f"pending?limit={limit}&after={quote(after)}").json
            seen += found["messages"]
            assert len(found["messages"]) <= limit
            after = found["next"]
        assert [one["due_ms"] for one in seen] == wanted, limit
        assert len({one["id"] for one in seen}) == 50
    mine = [one for one in seen if one["shard"] == MINE]
    assert [one["id"] for one in mine] == names
    assert mine[0]["offset"] == names[0].rpartition("/")[2]


def test_a_cursor_of_a_shard_that_has_gone_ends_the_list_and_one_that_has_come_is_told(world: DoorWorld) -> None:
    world.send(*(60_000 + n for n in range(40)))
    world.forgotten = {FOLLOWED, FAR}
    after = quote(world.get("pending?limit=5").json["next"])
    world.forgotten = {FAR}
    found = world.get(f"pending?limit=5&after={after}").json
    assert {one["shard"] for one in found["messages"]} == {MINE}
    assert (found["whole"], found["shards"][1]["state"]) == (False, "missing")
    assert "since the first answer" in found["shards"][1]["detail"]
    world.forgotten = {MINE, FAR}
    answer = world.get(f"pending?limit=5&after={after}")
    assert answer.status == 400
    assert MINE in answer.json["error"]


def test_counts_and_filters(world: DoorWorld) -> None:
    world.send(60_000, 70_000, 80_000)
    for query, count in (
        ("topic=F1", 5),
        ("property=KEYS=k1", 13),
        ("property=KEYS=k2", 0),
        (f"due_from={world.at(60_000)}&due_to={world.at(80_000)}", 2),
        (f"due_to={world.at(1001)}", 1),
    ):
        assert world.get(f"pending/count?{query}").json["count"] == count, query
    found = world.get("pending/count").json
    assert (found["count"], found["first_due_ms"], found["last_due_ms"]) == (13, world.at(1000), world.at(80_000))
    assert found["next"] is None


def test_a_count_of_many_shards_ends_and_goes_on() -> None:
    """Each shard takes two seconds; after three no further one is begun."""
    now = [0]

    class Slow(PlainPending):
        def count(self, query: PendingQuery, after: str = "") -> Any:
            now[0] += 2000
            return super().count(query, after)

    sights = [ShardSight(f"b/{n}", Sighting.OWNED, ME, "", Slow([row(1, BASE_MS)])) for n in range(5)]
    counts, after = [], ""
    while True:
        found = counted(sights, PendingQuery(topic="T"), after, lambda: now[0])
        counts.append(found["count"])
        if found["next"] is None:
            break
        after = found["next"]
    assert counts == [2, 2, 1]


def test_what_waits_by_topic(world: DoorWorld) -> None:
    names = world.send(60_000, 70_000, 80_000, 90_000)
    found = world.get("topics").json
    plain: dict[str, list[int]] = {}
    for one in [*world.mine.rows, *world.followed.rows]:
        plain.setdefault(one.topic, []).append(one.due_ms)
    assert [row["count"] for row in found["topics"]] == sorted(map(len, plain.values()), reverse=True)
    assert {
        row["topic"]: (row["count"], row["bytes"], row["first_due_ms"], row["last_due_ms"]) for row in found["topics"]
    } == {topic: (len(dues), 100 * len(dues), min(dues), max(dues)) for topic, dues in plain.items()}
    assert (found["known"], found["next"], found["whole"]) == (True, None, False)
    assert sum(row["count"] for row in found["topics"]) == len(names) + 10
    (row,) = world.get("topics?topic=F1").json["topics"]
    assert (row["topic"], row["count"]) == ("F1", 5)
    assert world.get("topics?topic=nobody").json["topics"] == []


def test_what_cannot_be_read_is_added_up_over_shards() -> None:
    class Torn(PlainPending):
        def by_topic(self, query: PendingQuery, after: str = "") -> TopicSums:
            return replace(super().by_topic(query, after), unread=2)

    sights = [ShardSight(f"b/{n}", Sighting.OWNED, ME, "", Torn([row(1, BASE_MS)])) for n in range(3)]
    found = by_topic(sights, PendingQuery(), "", lambda: 0)
    assert ([row["count"] for row in found["topics"]], found["unread"]) == ([3], 6)


def test_a_forecast(world: DoorWorld) -> None:
    world.send(60_000, 60_500, 90_000)
    found = world.get(f"pending/forecast?from={world.at(60_000)}&to={world.at(70_000)}&bars=10").json
    assert found["bars"] == [[world.at(60_000), 2]]
    assert [found[name] for name in ("total", "overdue", "later")] == [13, 10, 1]
    found = world.get("pending/forecast").json
    assert found["from_ms"] == world.now_ms(), "by the clock that is given"


# ------------------------------------------------------------------------------------------------ one entry


def test_one_entry_by_its_name(world: DoorWorld) -> None:
    (name,) = world.send(60_000)
    for written in (name, quote(name, safe="")):
        answer = world.get(f"pending/{written}")
        assert answer.status == 200, written
        assert (answer.json["id"], answer.json["verdict"], answer.json["due_ms"]) == (name, "done", world.at(60_000))
        assert base64.b64decode(answer.json["body_base64"]) == b"body \xff\0" * 10
        assert answer.json["properties"]["<b>"] == "</script>"
    assert world.get(f"pending/{name}?body_max=3").json["body_base64"] == "Ym9k"
    assert world.get(f"pending/{MINE}/99999").status == 404
    assert world.get(f"pending/{MINE}/0").json["verdict"] == "unknown", "the record of the takeover"


def test_a_cancel_is_a_record_with_a_definite_verdict(world: DoorWorld) -> None:
    first, second = world.send(60_000, 61_000)
    before = len(world.sim.entry_log)
    answer = world.post(f"pending/{first}/cancel")
    assert (answer.status, answer.json["verdict"], answer.json["shard"]) == (200, "done", MINE)
    assert [line.kind.value for line in world.sim.entry_log[before:]] == ["cancel", "verdict"]
    assert (world.post(f"pending/{first}/cancel").status, world.post(f"pending/{first}/cancel").json["verdict"]) == (
        200,
        "already",
    )
    answer = world.post(f"pending/{first}/move", {"by_ms": 5000})
    assert (answer.status, answer.json["verdict"]) == (409, "cancelled")
    answer = world.get(f"pending/{first}")
    assert (answer.status, answer.json["verdict"]) == (409, "cancelled")
    world.run_to(200_000)
    assert world.sim.copies == {int(second.rpartition("/")[2]): 1}, "the other one was delivered, this one was not"
    answer = world.post(f"pending/{quote(second, safe='')}/cancel")
    assert (answer.status, answer.json["verdict"]) == (409, "too_late")
    assert world.get(f"pending/{second}").status == 409
    assert world.sim.verdict() == {"lost": 0, "early": 0, "twice": 0, "undead": 0, "wrong": 0}


def test_move_and_now(world: DoorWorld) -> None:
    to, by, now = world.send(60_000, 60_000, 3_600_000)
    assert world.post(f"pending/{to}/move", {"due_ms": world.at(50_000)}).json["verdict"] == "done"
    assert world.get(f"pending/{to}").json["due_ms"] == world.at(50_000), "whoever asks next is told"
    assert world.post(f"pending/{by}/move", {"by_ms": 15_000}).json["due_ms"] == world.at(75_000)
    assert world.post(f"pending/{now}/now").json["verdict"] == "done"
    world.run_to(74_000)
    assert world.sim.copies == {int(name.rpartition("/")[2]): 1 for name in (to, now)}
    world.run_to(90_000)
    assert len(world.sim.copies) == 3
    assert world.sim.early == []


def test_a_rolled_entry_is_found_by_its_first_name(world: DoorWorld) -> None:
    (name,) = world.send(3_600_000)
    shard = world.node.shard
    assert shard is not None
    offset = int(name.rpartition("/")[2])
    while shard.commands.place_of(offset) == offset:
        world.run_to(world.sim.now + 100)
    found = world.get(f"pending/{name}").json
    place = f"{MINE}/{shard.commands.place_of(offset)}"
    assert (found["verdict"], found["id"], found["where"]) == ("done", name, place)
    assert found["due_ms"] == world.at(3_600_000)
    assert found["properties"]["KEYS"] == "k1", "its content is found where it stands now"
    assert world.post(f"pending/{name}/cancel").json["verdict"] == "done"
    world.run_to(world.sim.now + 1000)  # until the instance has read the verdict
    assert {one["shard"] for one in world.get("pending").json["messages"]} == {FOLLOWED}


def test_an_entry_of_a_shard_that_is_not_here(world: DoorWorld) -> None:
    """Its owner decides, wherever it is; here it does not answer."""
    for name in (f"{FOLLOWED}/3", f"{FAR}/3"):
        for answer in (world.get(f"pending/{name}"), world.post(f"pending/{name}/cancel")):
            assert answer.status == 504
            assert "will be decided" in answer.json["error"]
    answer = world.get("pending/broker-e/9/3")
    assert answer.status == 400
    assert "'broker-e/9' is no shard of TIMEWHEEL; there are broker-e/0, broker-e/1, broker-e/2" in answer.json["error"]


# ------------------------------------------------------------------------------------------------ bad input

DIGITS = "9" * 5000
LONG = "k" * 10_240
BAD_LOOKS = [
    ("pending?limit=0", 400, "limit"),
    (f"pending?limit={DIGITS}", 400, "limit"),
    ("pending?due_from=1700000000", 400, "looks like seconds"),
    (f"pending/count?due_to={DIGITS}", 400, "due_to"),
    ("pending?due_form=1", 400, "unknown here"),
    ("pending?key_prefix=order", 400, "'key_prefix' is unknown here"),
    ("pending?after=x", 400, "no cursor"),
    (f"pending?after=broker-e%2F0={DIGITS}-5", 400, "no cursor"),
    (f"pending?after={quote(';'.join(['a=.'] * 20_000))}", 414, "bytes"),
    ("pending?after=nobody%2F7=.", 400, "nobody/7"),
    (f"pending?property=KEYS={LONG}", 400, "property"),
    (f"pending?topic={LONG}", 400, "topic"),
    ("pending/count?property=x", 400, "name=value"),
    ("pending/forecast?from=1700000000000&to=1600000000000", 400, "no length"),
    ("pending/forecast?from=1700000000", 400, "looks like seconds"),
    ("pending/forecast?bars=100000", 400, "bars"),
    (f"pending/forecast?topic={LONG}", 400, "topic"),
    ("pending/nonsense", 400, "BROKER/QUEUE/OFFSET"),
    ("pending/key:order-1", 400, "BROKER/QUEUE/OFFSET"),
    (f"pending/{'f' * 32}", 400, "BROKER/QUEUE/OFFSET"),
    (f"pending/{LONG}", 400, "characters"),
    (f"pending/broker-e/0/{DIGITS}", 400, "5011 characters"),
    (f"pending/broker-e/{DIGITS}/0", 400, "5011 characters"),
    ("pending/broker-e/0/-1", 400, "BROKER/QUEUE/OFFSET"),
    ("pending/broker-e/0/%D9%A3", 400, "BROKER/QUEUE/OFFSET"),
    ("pending/broker-e/0/1%0a", 400, "BROKER/QUEUE/OFFSET"),
    (f"pending/{LONG}/0/1", 400, "characters"),
    ("pending/..%2F..%2F1", 400, "BROKER/QUEUE/OFFSET"),
    ("pending/broker-e/0/5?topic=T", 400, "unknown here"),
    ("pending/broker-e/0/5?body_max=5000000", 400, "body_max"),
    ("overview?x=1", 400, "unknown here"),
    ("topics?due_from=1700000000", 400, "looks like seconds"),
    ("topics?limit=5", 400, "unknown here"),
    ("topics?after=x", 400, "no cursor"),
]


@pytest.mark.parametrize(("path", "status", "text"), BAD_LOOKS, ids=[path[:40] for path, _, _ in BAD_LOOKS])
def test_a_bad_look_gets_a_text_that_names_it(world: DoorWorld, path: str, status: int, text: str) -> None:
    answer = world.get(path)
    assert (answer.status, text in answer.json["error"]) == (status, True), answer.body[:300]
    assert len(answer.body) < 1000
    assert world.commands == 0, "nothing was written for it"


BAD_ORDERS: list[tuple[str, object, str]] = [
    ("move", {}, "either due_ms"),
    ("move", {"due_ms": BASE_MS + 900_000, "by_ms": 1}, "either due_ms"),
    ("move", {"due_ms": BASE_MS // 1000}, "looks like seconds"),
    ("move", {"due_ms": BASE_MS - 60_000}, "in the past: to have it delivered now, the verb is now"),
    ("move", {"due_ms": 0}, "in the past"),
    ("move", {"due_ms": "soon"}, "a whole number"),
    ("move", {"due_ms": True}, "a whole number"),
    ("move", b'{"due_ms": ' + DIGITS.encode() + b"}", "due_ms"),
    ("move", b'{"by_ms": -' + DIGITS.encode() + b"}", "by_ms"),
    ("move", {"by_ms": 1.5}, "a whole number"),
    ("move", {"by_ms": 0}, "moves nothing"),
    ("cancel", {"due_ms": BASE_MS}, "unknown here"),
    ("cancel", {"version": 0}, "'version' is unknown here"),
    ("now", {LONG: 1}, "unknown here"),
    ("cancel", b"[1]", "no JSON object"),
    ("cancel", b"{", "no JSON"),
    ("cancel", b"\xff\xfe", "no JSON"),
    ("cancel", b"[" * 20_000, "no JSON"),
]


@pytest.mark.parametrize(("verb", "document", "text"), BAD_ORDERS, ids=[f"{v} {d!r:.20}" for v, d, _ in BAD_ORDERS])
def test_a_bad_order_writes_nothing(world: DoorWorld, verb: str, document: object, text: str) -> None:
    (name,) = world.send(60_000)
    answer = world.post(f"pending/{name}/{verb}", document)
    assert (answer.status, text in answer.json["error"]) == (400, True), answer.body[:300]
    assert len(answer.body) < 1000
    assert world.commands == 0


def test_verbs_that_a_service_has_not(world: DoorWorld) -> None:
    for verb in ("restart", "purge", LONG):
        answer = world.post(f"pending/{MINE}/5/{verb}")
        assert answer.status == 404
        assert "cancel, move, now" in answer.json["error"]
        assert len(answer.body) < 300
    assert world.post("bulk/restart", {"query": {"topic": "T"}}).status == 404
    assert world.get(f"pending/{MINE}/5/cancel").status == 405
    assert world.commands == 0


def test_a_cursor_is_read_as_it_was_written() -> None:
    sights = [ShardSight("b;=/0", Sighting.OWNED, control=PlainPending())]
    text = reading.cursor_of_shards({"b;=/0": "5-4000000000000005"})
    assert text is not None
    assert cursors_of_shards(text, sights) == {"b;=/0": "5-4000000000000005"}
    for bad in ("", ";", "=", "b", "b=;b=", "b%2F0=1-2-3"):
        if bad:
            with pytest.raises(PendingError):
                cursors_of_shards(bad, sights)


# ------------------------------------------------------------------------------------------------ description


def test_the_description_has_every_route(world: DoorWorld) -> None:
    made = app.make_app(world.api, world.view, None, "", "")  # type: ignore[arg-type]
    served = set()
    for route in made.router.routes():
        path = re.sub(r"\{(\w+):[^}]*\}", r"{\1}", route.resource.canonical if route.resource is not None else "")
        if route.method != "HEAD" and path not in ("/", "/page.css", "/page.js", "/api/v1/openapi.json"):
            verbs = api.VERBS if "{verb}" in path else ("",)
            served |= {(route.method, path.replace("{verb}", verb)) for verb in verbs}
    assert served == {(method.upper(), path) for path, methods in OPENAPI["paths"].items() for method in methods}
    assert world.get("openapi.json").json == OPENAPI


def described(name: str) -> set[str]:
    """The fields of a schema."""
    return _fields({"$ref": f"#/components/schemas/{name}"})


def _fields(schema: dict[str, Any]) -> set[str]:
    if "$ref" in schema:
        return _fields(OPENAPI["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    return {*schema.get("properties", {}), *(name for part in schema.get("allOf", ()) for name in _fields(part))}


def test_answers_have_the_fields_that_are_described(world: DoorWorld) -> None:
    (name,) = world.send(60_000)
    rows = world.get("pending?limit=1").json
    assert rows["messages"][0].keys() == described("Row")
    assert rows["shards"][0].keys() == described("Shard")
    assert world.get(f"pending/{name}").json.keys() == described("Message")
    overview = world.get("overview").json
    assert overview.keys() == described("Overview")
    assert overview["shards"][0].keys() == described("ShardFigures")
    assert world.post(f"pending/{name}/cancel").json.keys() == described("Answer")
    found = world.post("bulk/cancel", {"query": {"topic": "F1"}}).json
    assert found.keys() == described("Bulk") | described("Coverage")
    assert found["answers"][0].keys() == described("BulkAnswer")
    topics = world.get("topics").json
    assert topics["topics"][0].keys() == described("Topic")
    schema = OPENAPI["paths"]["/api/v1/topics"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert topics.keys() == _fields(schema)
    for path in ("", "/count", "/forecast"):
        schema = OPENAPI["paths"][f"/api/v1/pending{path}"]["get"]["responses"]["200"]["content"]
        assert world.get(f"pending{path}").json.keys() == _fields(schema["application/json"]["schema"]), path


def test_the_overview(world: DoorWorld) -> None:
    world.send(60_000, 200_000_000)
    world.view.reasons.append("broker-e/0: deliveries are behind")
    world.mono_ms = 5_000
    found = world.get("overview").json
    mine, followed, far = found["shards"]
    assert (mine["count"], mine["beyond_roll"], mine["standby"], mine["doubts"]) == (2, 1, OTHERS, 2)
    assert (mine["refused"], followed["refused"], far["refused"], found["pending"]["refused"]) == (3, 0, None, 3)
    assert (followed["count"], followed["overdue"], followed["oldest_overdue_ms"]) == (10, 0, None), "delivered, maybe"
    assert (far["state"], far["count"], far["owner"]) == ("missing", None, OTHERS)
    assert found["pending"]["next_due_ms"] == world.at(7000)
    assert found["not_ready"] == ["broker-e/0: deliveries are behind"]
    world.send(70_000)
    assert world.get("overview").json["pending"]["count"] == 12, "gathered at most once in 0.9 s, whoever asks"
    world.mono_ms += api.OVERVIEW_MS
    assert world.get("overview").json["pending"]["count"] == 13
    world.run_to(14_000)
    world.mono_ms += api.OVERVIEW_MS
    followed = world.get("overview").json["shards"][1]
    assert (followed["overdue"], followed["oldest_overdue_ms"]) == (3, world.at(1000)), "due for ten seconds and more"


# ------------------------------------------------------------------------------------------------ who may, limits


def test_a_page_of_another_site_changes_nothing(world: DoorWorld) -> None:
    (name,) = world.send(60_000)
    for status, headers in (
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "null"}),
        (403, {"Sec_Fetch_Site": "cross-site"}),
        (415, {"Content_Type": "text/plain"}),
        (403, {"Host": "evil.example"}),
    ):
        assert world.post(f"pending/{name}/cancel", **headers).status == status, headers
    assert world.get("pending", Host="evil.example").status == 403
    assert world.get(f"pending/{MINE}/99999", Sec_Fetch_Site="cross-site").status == 403, "such a look writes records"
    assert world.commands == 0
    assert world.get("/metrics", Host="service-1.example").status == 200, "health and metrics are as they were"
    own = {"Origin": f"http://127.0.0.1:{world.port}", "Sec_Fetch_Site": "same-origin"}
    assert world.post(f"pending/{name}/cancel", **own).status == 200
    assert "default-src 'none'" in world.get("/").headers["Content-Security-Policy"]


def test_a_token_is_asked_for_and_health_needs_none(tmp_path: Path) -> None:
    with DoorWorld(tmp_path, token=TOKEN) as world:
        (name,) = world.send(60_000)
        for path in ("pending", "overview", f"pending/{name}"):
            assert world.get(path).status == 401
            for wrong in (f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer", "Bearer \xff"):
                assert world.get(path, Authorization=wrong).status == 401
            assert world.get(path, Authorization=f"Bearer {TOKEN}").status == 200
        assert world.post(f"pending/{name}/cancel").status == 401
        assert world.commands == 1, "the look with the token"
        for path in ("/", "/page.js", "/page.css", "/healthz", "/readyz", "/metrics", "openapi.json"):
            assert world.get(path).status == 200


def test_off_127_without_a_token_there_is_health_alone(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "service-1.example"):
        assert "TIMEWHEEL_HTTP_TOKEN" in why_health_only(host, "")
        assert why_health_only(host, TOKEN) == ""
    with DoorWorld(tmp_path, closed=why_health_only("0.0.0.0", "")) as world:
        (name,) = world.send(60_000)
        for path in ("/healthz", "/readyz", "/metrics"):
            assert world.get(path).status == 200
        for path in ("/", "pending", "overview", f"pending/{name}", "openapi.json"):
            assert world.get(path).status == 403
        assert "TIMEWHEEL_HTTP_TOKEN" in world.post(f"pending/{name}/cancel").json["error"]
        assert world.commands == 0


def test_limits(world: DoorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = world.send(60_000)
    assert world.post(f"pending/{name}/cancel", b" " * (BODY_MAX_BYTES + 1)).status == 413
    monkeypatch.setattr(app, "BODY_S", 0.1)
    assert ask(world.port, f"/api/v1/pending/{name}/cancel", "POST", b"{", Content_Length="100").status == 408
    monkeypatch.setattr(orders, "UNDER_WAY_MAX", 0)
    answer = world.post(f"pending/{name}/cancel")
    assert (answer.status, "commands wait for their verdicts" in answer.json["error"]) == (503, True)
    assert world.commands == 0
    monkeypatch.undo()
    monkeypatch.setattr(orders, "VERDICT_S", 0.05)
    world.mute = True
    answer = world.post(f"pending/{name}/cancel")
    world.mute = False
    assert (answer.status, "no verdict within 0.05 s" in answer.json["error"]) == (504, True)
    go_on = threading.Event()
    monkeypatch.setattr(type(world.followed), "page", lambda *_: go_on.wait(30))
    monkeypatch.setattr(api, "WORK_S", 0.05)
    answer = world.get("pending")
    go_on.set()
    assert (answer.status, "not done after" in answer.json["error"]) == (503, True)
    assert world.get("/healthz").status == 200


def test_what_was_opened_is_closed(tmp_path: Path) -> None:
    with DoorWorld(tmp_path) as world:
        world.get(f"pending/{MINE}/99999")
        assert not world.closed
    assert world.closed
