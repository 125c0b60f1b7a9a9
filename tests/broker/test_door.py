"""The HTTP door: the API against a list, its description, who may do what, other sites, limits, health."""

from __future__ import annotations

import base64
import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.access.acl_rules import AclRules
from broker.broker import Broker
from broker.config.broker_config import BrokerConfig, ConfigError
from broker.door import app, state
from broker.door.door import CONNECTIONS_MAX, make_door
from broker.pending.names import name_text
from store.disk.errors import StoreError
from store.put.pending_api import PendingControl, PendingVerb, PendingVerdict
from tests.broker.core_rig import START_MS, FakePlugin
from tests.support.door import Answer, DoorRig, ask
from tests.support.plain_pending import PlainPending, row

OPENAPI = json.loads((Path(app.__file__).parent / "openapi.json").read_text())
TOKEN = "a-token-of-sixteen-or-more"


class PlainPlugin(FakePlugin):
    """A plug-in whose pending messages are a list."""

    def __init__(self) -> None:
        super().__init__()
        rows = [row(n, START_MS + 1000 * n, f"T{n % 3}", key=f"order-{n}", tag="even" * (1 - n % 2)) for n in range(30)]
        self.list = PlainPending(rows)

    @property
    def pending(self) -> PendingControl:
        return self.list


class World(DoorRig):
    def __init__(self, root: Path, **values: Any) -> None:
        self.plugin = PlainPlugin()
        super().__init__(root, self.plugin, **values)

    @property
    def list(self) -> PlainPending:
        return self.plugin.list

    def id(self, number: int) -> str:
        return name_text((1 << 62) + number, self.rig.store.store_host)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "store") as made:
        yield made


# ------------------------------------------------------------------------------------------------ looking


def test_listing_page_by_page_is_the_list(world: World) -> None:
    seen: list[dict[str, Any]] = []
    after = ""
    while True:
        answer = world.get(f"/api/v1/pending?topic=T1&limit=4&after={after}")
        assert answer.status == 200
        seen += answer.json["messages"]
        after = answer.json["next"]
        if after is None:
            break
    assert [found["due_ms"] for found in seen] == [START_MS + 1000 * n for n in range(1, 30, 3)]
    assert seen[0]["id"] == world.id(1)
    assert seen[0]["offset"] == str((1 << 62) + 1)
    assert seen[0]["key"] == "order-1"


def test_counts_and_filters(world: World) -> None:
    assert world.get("/api/v1/pending/count").json["count"] == 30
    for query, count in (
        ("topic=T0", 10),
        ("tag=even", 15),
        ("key_prefix=order-2", 11),
        (f"due_from={START_MS + 5000}&due_to={START_MS + 8000}", 3),
        (f"topic=T2&due_to={START_MS + 9000}", 3),
    ):
        assert world.get(f"/api/v1/pending/count?{query}").json["count"] == count, query
    found = world.get("/api/v1/pending/count?topic=T1").json
    assert (found["first_due_ms"], found["last_due_ms"], found["next"]) == (START_MS + 1000, START_MS + 28000, None)


def test_a_forecast(world: World) -> None:
    answer = world.get(f"/api/v1/pending/forecast?from={START_MS + 10_000}&to={START_MS + 20_000}&bars=5")
    assert answer.json["bars"] == [[START_MS + 10_000 + 2000 * n, 2] for n in range(5)]
    assert [answer.json[name] for name in ("total", "overdue", "later")] == [30, 10, 10]
    answer = world.get(f"/api/v1/pending/forecast?from={START_MS + 10_000}&to={START_MS + 20_000}&topic=T1")
    assert [answer.json[name] for name in ("total", "overdue", "later")] == [4, 0, 0]


def test_the_door_asks_for_a_forecast_before_anybody_does(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []

    def forecast(*what: int) -> None:
        asked.append(what)
        raise StoreError("a file is being removed")  # it was only for later

    monkeypatch.setattr(world.list, "forecast", forecast)
    world.door.state.look_ahead()
    assert asked == [(START_MS, START_MS + 1, 1)]
    world.door.state.running = False
    world.door.state.look_ahead()
    assert len(asked) == 1


def test_one_message(world: World) -> None:
    for name in (world.id(4), str((1 << 62) + 4), hex((1 << 62) + 4), "key:order-4?topic=T1"):
        answer = world.get(f"/api/v1/pending/{name}")
        assert answer.status == 200, name
        assert answer.json["due_ms"] == START_MS + 4000
        assert answer.json["properties"]["<b>"] == "</script>"
        assert base64.b64decode(answer.json["body_base64"]) == b"body \xff\0" * 10
    assert world.get(f"/api/v1/pending/{world.id(4)}?body_max=3").json["body_base64"] == "Ym9k"
    assert world.get(f"/api/v1/pending/{world.id(99)}").status == 404
    assert world.get(f"/api/v1/pending/{world.id(4)}?topic=T2").status == 404


def test_topics_and_overview(world: World) -> None:
    assert {found["topic"]: found["count"] for found in world.get("/api/v1/topics").json["topics"]} == {
        "T0": 10,
        "T1": 10,
        "T2": 10,
    }
    found = world.get("/api/v1/topics?limit=1").json
    assert (found["more"], found["known"]) == (2, True)
    assert {found["bytes_exact"] for found in world.get("/api/v1/topics").json["topics"]} == {False}
    found = world.get("/api/v1/overview").json
    assert found["pending"]["count"] == 30
    assert found["pending"]["next_due_ms"] == START_MS
    assert found["not_ready"] == []


# ------------------------------------------------------------------------------------------------ changing


@pytest.mark.parametrize("verb", list(PendingVerb))
def test_every_verb_and_every_verdict(world: World, verb: PendingVerb) -> None:
    document = {"by_ms": 5000} if verb is PendingVerb.MOVE else {}
    answer = world.post(f"/api/v1/pending/{world.id(7)}/{verb}", document)
    assert (answer.status, answer.json["verdict"]) == (200, "done")
    assert world.list.orders[-1].verb is verb
    for verdict, status in (
        ("already", 200),
        ("too_late", 409),
        ("cancelled", 409),
        ("unknown", 404),
        ("refused", 400),
    ):
        world.list.gone[(1 << 62) + 77] = PendingVerdict(verdict)
        answer = world.post(f"/api/v1/pending/{world.id(77)}/{verb}", document)
        assert (answer.status, answer.json["verdict"]) == (status, verdict)
    answer = world.post(f"/api/v1/pending/{world.id(8)}/{verb}", {**document, "version": 3})
    assert (answer.status, answer.json["verdict"]) == (409, "changed")


def test_a_move_to_a_time(world: World) -> None:
    answer = world.post(f"/api/v1/pending/{world.id(3)}/move", {"due_ms": START_MS + 90_000})
    assert answer.json["verdict"] == "done"
    assert world.get(f"/api/v1/pending/{world.id(3)}").json["due_ms"] == START_MS + 90_000


def test_bulk_is_a_dry_run_unless_it_is_told_otherwise(world: World) -> None:
    answer = world.post("/api/v1/bulk/cancel", {"query": {"topic": "T1"}})
    told = {"dry_run": True, "verdicts": {"done": 10}, "looked_at": 10, "answers": [], "next": None}
    assert answer.json == {**told, "unread": 0, "remark": None}
    assert len(world.list.rows) == 30
    answer = world.post("/api/v1/bulk/cancel", {"query": {"topic": "T1"}, "dry_run": False, "limit": 4})
    assert answer.json["verdicts"] == {"done": 4}
    assert len(answer.json["answers"]) == 4
    assert len(world.list.rows) == 26
    for wide in ({}, {"due_from": 0}, {"key_prefix": ""}, {"due_to": 253_402_300_799_999}):
        answer = world.post("/api/v1/bulk/cancel", {"query": wide, "dry_run": False})
        assert (answer.status, "could change everything" in answer.json["error"]) == (400, True)
    assert len(world.list.rows) == 26


DIGITS = "9" * 5000
BAD_LOOKS = [
    ("pending?limit=0", "limit"),
    ("pending?limit=1001", "limit"),
    (f"pending?limit={DIGITS}", "limit"),
    ("pending?due_from=1700000000", "looks like seconds"),
    (f"pending?due_from={DIGITS}", "due_from"),
    ("pending?due_form=1", "unknown here"),
    ("pending?after=x", "no cursor"),
    ("pending/count?property=x", "name=value"),
    (f"pending?topic={'x' * 5000}", "topic"),
    ("pending/forecast?from=1700000000000&to=1600000000000", "no length"),
    ("pending/forecast?bars=100000", "bars"),
    ("pending/nonsense", "neither a message id"),
    ("pending/key:x", "needs its topic"),
    ("pending/1", "names no pending message"),
    (f"pending/{'f' * 6000}", "characters"),
]


@pytest.mark.parametrize(("path", "text"), BAD_LOOKS, ids=[path[:30] for path, _ in BAD_LOOKS])
def test_a_bad_look_gets_a_text_that_names_it(world: World, path: str, text: str) -> None:
    answer = world.get(f"/api/v1/{path}")
    assert answer.status == 400
    assert text in answer.json["error"]
    assert len(answer.body) < 1000


BAD_ORDERS: list[tuple[str, object, str]] = [
    ("move", {}, "either due_ms"),
    ("move", {"due_ms": START_MS + 5, "by_ms": 1}, "either due_ms"),
    ("move", {"due_ms": START_MS // 1000}, "looks like seconds"),
    ("move", {"due_ms": START_MS - 60_000}, "60000 ms in the past"),
    ("move", {"due_ms": "soon"}, "a whole number"),
    ("move", {"due_ms": 1.5}, "a whole number"),
    ("move", {"due_ms": True}, "a whole number"),
    ("move", b'{"due_ms": ' + DIGITS.encode() + b"}", ""),
    ("move", {"due": 1}, "unknown here"),
    ("cancel", {"due_ms": START_MS + 5}, "unknown here"),
    ("cancel", {"version": -1}, "version"),
    ("cancel", b"[1]", "no JSON object"),
    ("cancel", b"{", "no JSON"),
    ("cancel", b"\xff\xfe", "no JSON"),
    ("cancel", b"[" * 20_000, "no JSON"),
]


@pytest.mark.parametrize(("verb", "document", "text"), BAD_ORDERS, ids=[f"{v} {d!r:.20}" for v, d, _ in BAD_ORDERS])
def test_a_bad_order_changes_nothing(world: World, verb: str, document: object, text: str) -> None:
    answer = world.post(f"/api/v1/pending/{world.id(5)}/{verb}", document)
    assert answer.status == 400
    assert text in answer.json["error"]
    assert world.list.orders == []


# ------------------------------------------------------------------------------------------------ description


def paths() -> list[tuple[str, str]]:
    return [(method.upper(), path) for path, methods in OPENAPI["paths"].items() for method in methods]


def test_the_description_has_every_route(world: World) -> None:
    served = set()
    for route in app.make_app(world.door.state).router.routes():
        path = route.resource.canonical if route.resource is not None else ""
        if route.method != "HEAD" and path not in ("/", "/page.css", "/page.js", "/api/v1/openapi.json"):
            verbs = re.search(r"\{verb[^}]*\}", path)
            served |= (
                {(route.method, path.replace(verbs[0], verb)) for verb in PendingVerb}
                if verbs
                else {(route.method, path)}
            )
    assert served == set(paths())
    assert world.get("/api/v1/openapi.json").json == OPENAPI


def test_answers_have_the_fields_that_are_described(world: World) -> None:
    fields = {name: schema.get("properties", {}).keys() for name, schema in OPENAPI["components"]["schemas"].items()}
    fields = {
        name: found - {"broker", "error", "others"} for name, found in fields.items()
    }  # where it is one of several shards
    schemas = OPENAPI["components"]["schemas"]
    message = world.get(f"/api/v1/pending/{world.id(1)}").json
    rows = world.get("/api/v1/pending?limit=1").json["messages"]
    answer = world.post(f"/api/v1/pending/{world.id(2)}/cancel").json
    bulk = world.post("/api/v1/bulk/cancel", {"query": {"topic": "T1"}}).json
    assert rows[0].keys() == fields["Row"]
    assert answer.keys() == fields["Answer"]
    assert bulk.keys() == fields["Bulk"]
    described = {name for part in schemas["Message"]["allOf"] for name in part.get("properties", {})}
    described |= fields["Row"] | fields["Answer"]
    assert message.keys() == described
    assert {verdict.value for verdict in PendingVerdict} == set(schemas["Answer"]["properties"]["verdict"]["enum"])


def _numbers() -> Iterator[tuple[str, str, str]]:
    """Each number that a request may have: method, path, and its name, in the body where that has an object."""
    for method, path in paths():
        described = OPENAPI["paths"][path][method.lower()]
        for parameter in described.get("parameters", []):
            if parameter.get("schema", {}).get("type") == "integer":
                yield method, path, f"?{parameter['name']}"
        content = described.get("requestBody", {}).get("content", {}).get("application/json", {})
        schema = content.get("schema", {})
        schema = OPENAPI["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], schema)
        for name, value in schema.get("properties", {}).items():
            if value.get("type") == "integer":
                yield method, path, name
        if "/bulk/" in path:
            yield from ((method, path, f"query.{name}") for name in ("due_from", "accepted_to"))


NUMBERS = list(_numbers())


def test_the_numbers_are_there() -> None:
    names = {name for _, _, name in NUMBERS}
    assert names >= {"?limit", "?due_from", "?bars", "?from", "?body_max", "version", "due_ms", "by_ms", "limit"}


@pytest.mark.parametrize("text", ["9" * 5000, "-" + "9" * 5000, "1e400", "true"], ids=["long", "low", "float", "word"])
def test_a_number_that_is_none_is_named_by_every_route(world: World, text: str) -> None:
    for method, path, name in NUMBERS:
        path = path.replace("{id}", world.id(1))
        topic = "topic=T1"
        if name.startswith("?"):
            answer = ask(world.door.http_port, f"{path}{name}={text}&{topic}", method)
        else:
            inner = name.rpartition(".")[2]
            body = f'{{"query": {{"{inner}": {text}}}}}' if "." in name else f'{{"{name}": {text}}}'
            if path.endswith("/move") and name in ("limit", "version"):
                body = f'{{"{name}": {text}, "by_ms": 5}}'
            answer = ask(world.door.http_port, path, method, body.encode())
        assert answer.status == 400, (method, path, name)
        assert name.strip("?").rpartition(".")[2] in answer.json["error"], (method, path, name)
        assert len(answer.body) < 300
    assert world.list.orders == []


@pytest.mark.parametrize("path", ["pending/{}?topic=T", "pending?key_prefix={}", "pending/count?topic={}", "{}"])
@pytest.mark.parametrize("length", [5_000, 10_240, 200_000])
def test_a_long_address_is_answered_in_our_words(world: World, path: str, length: int) -> None:
    answer = world.get(f"/api/v1/{path.format('key:' + 'k' * length)}")
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.status == (404 if path == "{}" and length < 65_536 else 414 if length > 65_536 else 400)
    assert len(answer.json["error"]) < 300
    assert "reading" not in answer.json["error"]


def test_what_is_no_json_is_said_in_our_words(world: World) -> None:
    for body, text in (
        (b"{", "line 1, column 2"),
        (b"\xff\xfe{}x", "UTF-8"),
        (b"[" * 60_000, "nested"),
        (b"[]", "no JSON object"),
    ):
        answer = world.post(f"/api/v1/pending/{world.id(1)}/move", body)
        assert (answer.status, text in answer.json["error"]) == (400, True), answer.body
        assert "codec" not in answer.json["error"]


def test_a_filter_is_given_once(world: World) -> None:
    answer = world.get("/api/v1/pending?topic=T1&topic=T2")
    assert (answer.status, "topic is given twice" in answer.json["error"]) == (400, True)
    assert world.get("/api/v1/pending?property=KEYS=k1&property=a=b").status == 200


# ------------------------------------------------------------------------------------------------ who may


def test_a_page_of_another_site_changes_nothing(world: World) -> None:
    path = f"/api/v1/pending/{world.id(5)}/cancel"
    own = f"127.0.0.1:{world.door.http_port}"
    for status, headers in (
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "null"}),
        (403, {"Sec_Fetch_Site": "cross-site"}),
        (403, {"Sec_Fetch_Site": "same-site"}),
        (415, {"Content_Type": "text/plain"}),
        (415, {"Content_Type": "application/x-www-form-urlencoded"}),
        (403, {"Host": "evil.example"}),
        (403, {"Host": f"evil.example:{world.door.http_port}", "Origin": "http://evil.example"}),
    ):
        assert world.post(path, **headers).status == status, headers
    assert world.list.orders == []
    assert world.get("/api/v1/pending", Host="evil.example").status == 403
    assert world.post(path, Origin=f"http://{own}", Sec_Fetch_Site="same-origin").status == 200
    assert world.get(path).status == 405


def test_headers_for_browsers(world: World) -> None:
    for path in ("/", "/api/v1/pending", "/healthz", "/nothing"):
        answer = world.get(path)
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in answer.headers
    assert world.get("/nothing").json == {"error": "404: Not Found"}


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    with World(tmp_path / "store", httpToken=TOKEN) as world:
        for path in ("/api/v1/pending", "/api/v1/overview", "/metrics"):
            assert world.get(path).status == 401
            assert world.get(path, Authorization=f"Bearer {TOKEN}x").status == 401
            assert world.get(path, Authorization=f"Basic {TOKEN}").status == 401
            assert world.get(path, Authorization=f"Bearer {TOKEN}").status == 200
        assert world.post(f"/api/v1/pending/{world.id(1)}/cancel").status == 401
        assert world.list.orders == []
        assert world.get("/api/v1/pending").headers["WWW-Authenticate"] == 'Bearer realm="timewheel"'
        for path in ("/", "/healthz", "/readyz", "/api/v1/openapi.json"):
            assert world.get(path).status == 200


RULES = b"""
accounts:
- accessKey: adminkey
  secretKey: adminsecret
  admin: true
- accessKey: reader1
  secretKey: readersecret
  topicPerms:
  - T1=PUB|SUB
- accessKey: writer1
  secretKey: writersecret
  topicPerms:
  - T1=PENDING
"""


def basic(key: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{key}:{secret}".encode()).decode()


def test_accounts_see_and_change_their_topics(tmp_path: Path) -> None:
    rules = tmp_path / "acl.yml"
    rules.write_bytes(RULES)
    rules.chmod(0o600)
    assert AclRules.read(RULES)
    with World(tmp_path / "store", aclEnable="true", aclFile=rules) as world:
        admin, reader, writer = (basic(k, s) for k, s in (
            ("adminkey", "adminsecret"), ("reader1", "readersecret"), ("writer1", "writersecret"),
        ))  # fmt: skip
        assert world.get("/api/v1/pending").status == 401
        assert world.get("/api/v1/pending", Authorization=basic("reader1", "wrong")).status == 401
        assert world.get("/api/v1/pending", Authorization=basic("nobody", "")).status == 401
        assert world.get("/api/v1/pending", Authorization="Basic !!!").status == 401
        assert world.get("/api/v1/pending", Authorization=admin).status == 200
        assert world.get("/api/v1/pending?topic=T1", Authorization=reader).status == 403
        assert world.get("/api/v1/pending", Authorization=writer).status == 403
        assert world.get("/api/v1/pending?topic=T1", Authorization=writer).status == 200
        assert world.get("/api/v1/pending?topic=T2", Authorization=writer).status == 403
        topics = world.get("/api/v1/topics", Authorization=writer).json["topics"]
        assert [found["topic"] for found in topics] == ["T1"]
        path = f"/api/v1/pending/{world.id(1)}/cancel"
        assert world.post(path, Authorization=reader).status == 403
        assert world.post(f"{path}?topic=T1", Authorization=reader).status == 403
        assert world.post(path, Authorization=writer).status == 403
        assert world.list.orders == []
        assert (
            world.post(f"/api/v1/pending/{world.id(2)}/cancel?topic=T1", Authorization=writer).json["verdict"]
            == "unknown"
        )
        assert world.post(f"{path}?topic=T1", Authorization=writer).status == 200
        assert world.post("/api/v1/bulk/cancel", {"query": {"tag": "even"}}, Authorization=writer).status == 403


def test_never_open_to_everybody(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "192.0.2.1"):
        config = BrokerConfig(tmp_path, {"httpListen": f"{host}:0"})
        with pytest.raises(ConfigError, match="would let everybody"):
            make_door(config, lambda: None)
        make_door(BrokerConfig(tmp_path, {"httpListen": f"{host}:0", "httpToken": TOKEN}), lambda: None)
    with pytest.raises(ConfigError, match=r"httpToken=\*+: expected 16"):
        BrokerConfig(tmp_path, {"httpToken": "short"})


def test_a_port_that_somebody_else_listens_on_meanwhile_is_named(tmp_path: Path) -> None:
    door = make_door(BrokerConfig(tmp_path, {"httpListen": "127.0.0.1:0"}), lambda: None)
    door.bind()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", door.http_port))
        other.listen()
        with pytest.raises(OSError, match=f"cannot listen for HTTP on 127.0.0.1:{door.http_port}: Address already"):
            door.start()
    door.stop()


# ------------------------------------------------------------------------------------------------ limits, health


def test_a_long_body_is_refused(world: World) -> None:
    answer = world.post(f"/api/v1/pending/{world.id(5)}/cancel", b" " * (app.BODY_MAX_BYTES + 1))
    assert answer.status == 413
    assert world.list.orders == []


def test_a_request_that_is_no_http_is_told_so_and_fills_no_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    assert ask(world.door.http_port, "/api/v1/topics?tag=" + "9" * 20_000).status == 400
    with socket.create_connection(("127.0.0.1", world.door.http_port), 30) as peer:
        peer.sendall(b"\xff\0 this is not HTTP\r\n\r\n")
        assert peer.recv(100).startswith(b"HTTP/1.0 400")
    assert ask(world.door.http_port, "/healthz").status == 200
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_many_at_once_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    plain = PlainPending.page

    def slow(self: PlainPending, *args: Any) -> Any:
        go_on.wait(30)
        return plain(self, *args)

    monkeypatch.setattr(PlainPending, "page", slow)
    monkeypatch.setattr(state, "WAITING_MAX", 3)
    answers: list[Answer] = []
    answered = threading.Semaphore(0)

    def get() -> None:
        answers.append(world.get("/api/v1/pending"))
        answered.release()

    threads = [threading.Thread(target=get, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert all(answered.acquire(timeout=20) for _ in range(3))
    assert {found.status for found in answers} == {503}
    assert "3 requests are under way, at most 3 may be" in answers[0].json["error"]
    assert world.get("/healthz").status == 200  # its loop is free
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert sorted(found.status for found in answers) == [200] * 3 + [503] * 3


def test_what_takes_too_long_is_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(PlainPending, "page", lambda *_: go_on.wait(30))
    monkeypatch.setattr(state, "WORK_S", 0.05)
    answer = world.get("/api/v1/pending")
    assert answer.status == 503
    assert "it goes on" in answer.json["error"]
    go_on.set()


def test_connections_that_say_nothing_keep_nobody_out(world: World) -> None:
    idle = [socket.create_connection(("127.0.0.1", world.door.http_port)) for _ in range(CONNECTIONS_MAX + 40)]
    try:
        assert world.get("/healthz").status == 200
        idle[0].settimeout(20)
        assert idle[0].recv(1) == b""  # the oldest ones were closed
    finally:
        for sock in idle:
            sock.close()


def test_errors_of_the_disk_are_told_to_ask_again(world: World) -> None:

    world.list.error = StoreError("the disk has failed")
    answer = world.get("/api/v1/pending")
    assert (answer.status, answer.json["error"]) == (503, "the disk has failed")
    world.list.error = RuntimeError("secret detail")
    answer = world.get("/api/v1/pending")
    assert answer.status == 500
    assert b"secret" not in answer.body


def test_ready_says_why_not(world: World) -> None:
    assert world.get("/readyz").body == b"ok\n"
    world.rig.now_ms = START_MS + 9_000
    assert world.get("/readyz").status == 200
    world.rig.now_ms = START_MS + 12_500
    answer = world.get("/readyz")
    assert answer.status == 503
    assert answer.body == b"deliveries are behind: the oldest message came due 12.5 s ago\n"
    world.rig.store.retention.disk_remark = "the disk is 99 % full"
    assert world.get("/readyz").body.startswith(b"the disk is 99 % full\n")
    world.failure = OSError("no sync")
    assert world.get("/readyz").body == b"the broker accepts no more messages: no sync\n"
    assert world.get("/healthz").status == 200
    world.door.state.running = False
    world.failure = None
    assert world.get("/readyz").body == b"the broker is recovering or stopping\n"
    assert world.get("/api/v1/pending").status == 503


@pytest.mark.asyncio
async def test_a_broker_opens_and_closes_its_doors(tmp_path: Path) -> None:
    import asyncio

    settings = {"httpListen": "127.0.0.1:0", "metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
    broker = Broker(
        BrokerConfig(tmp_path / "store", settings, listen_port=0, namesrv_listen=("127.0.0.1", 0), plugins=["delay"])
    )
    async with broker:
        http, metrics = broker.door.http_port, broker.door.metrics_port
        assert (await asyncio.to_thread(ask, metrics, "/metrics")).body.startswith(b"# HELP rocketmq_broker_permission")
        assert (await asyncio.to_thread(ask, http, "/readyz")).body == b"ok\n"
        assert (await asyncio.to_thread(ask, metrics, "/api/v1/pending")).status == 404
    for port in (http, metrics):
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(ask, port, "/healthz")
