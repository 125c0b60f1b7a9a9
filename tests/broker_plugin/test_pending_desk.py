"""The desk: definite verdicts, bulk changes by query, cursors that survive a restart, words for whatever is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from broker_plugin.pending.desk import PendingDesk
from broker_plugin.rules.properties import DUE_MAX_MS
from remoting.messages.message import Message
from remoting.messages.properties import format_properties
from store.disk.errors import StoreDoubtError, StoreError, StoreFullError, SyncFailedError
from store.disk.file import File
from store.disk.ticket import Ticket
from store.put.pending_api import (
    BULK_MAX,
    PAGE_MAX,
    PendingAnswer,
    PendingControl,
    PendingError,
    PendingName,
    PendingOrder,
    PendingPlugin,
    PendingQuery,
    PendingVerb,
    PendingVerdict,
)
from store.put.pending_cursor import cursor_text
from store.put.plugin_api import Held
from store.spill.state import outlook
from tests.store.test_spill_journal import Failing
from tests.support.delay_rig import START_MS
from tests.support.delay_world import DelayWorld

NOW = START_MS
DAY_MS = 9_000
V = PendingVerdict


def order(offset: int, verb: PendingVerb = PendingVerb.CANCEL, **rest: int) -> PendingOrder:
    return PendingOrder(verb=verb, name=PendingName(offset=offset), **rest)


class Desk:
    """A whole plug-in in virtual time, and its desk."""

    def __init__(self, seed: int = 1, *, flush_sync: bool = False) -> None:
        self.world = DelayWorld(seed, flush_sync=flush_sync)

    @property
    def desk(self) -> PendingDesk:
        return self.world.plugin.pending

    @property
    def now(self) -> int:
        return self.world.clock.now_ms

    def send(self, due_ms: int, topic: str = "T", body: bytes = b"b", **properties: str) -> int:
        plugin = self.world.plugin
        text = format_properties({"__STARTDELIVERTIME": str(due_ms), **properties})
        held = plugin.before_put(Message(topic, 1, born_ms=5, body=body, properties=text), self.now)
        assert isinstance(held, Held)
        plugin.commit_turn()
        return held.offset

    def change(self, offset: int, verb: PendingVerb = PendingVerb.CANCEL, **rest: int) -> PendingAnswer:
        return self.desk.change(order(offset, verb, **rest), self.now)

    def delivered(self) -> dict[int, tuple[int, int, int, bytes]]:
        return self.world.delivered()

    @contextmanager
    def unreadable(self) -> Iterator[None]:
        """Have the disk read nothing meanwhile."""

        def fails(path: Path) -> None:
            raise StoreError(f"cannot read {path}: unreadable")

        self.world.disk.read_fault = fails
        yield
        self.world.disk.read_fault = None


def test_the_plug_in_has_a_desk() -> None:
    plugin = Desk().world.plugin
    assert isinstance(plugin, PendingPlugin)
    control: PendingControl = plugin.pending
    assert control.figures().count == 0


def test_get_shows_all_of_a_message() -> None:
    desk = Desk()
    offset = desk.send(NOW + DAY_MS, "Orders", b"\0\xff", TAGS="vip", UNIQ_KEY="AC11", a="1")
    answer = desk.desk.get(PendingName(offset=offset))
    assert (answer.verdict, answer.version, answer.due_ms, answer.body) == (V.DONE, 0, NOW + DAY_MS, b"\0\xff")
    assert answer.row is not None
    row = answer.row
    assert (row.topic, row.queue_id, row.tag, row.unique_key, row.key) == ("Orders", 1, "vip", "AC11", "")
    assert row.accepted_ms == NOW
    assert dict(answer.properties)["a"] == "1"


def test_a_name_that_does_not_fit_shows_and_changes_nothing() -> None:
    desk = Desk()
    offset = desk.send(NOW + DAY_MS, "Orders", UNIQ_KEY="AC11")
    for name in (PendingName(offset=offset, topic="Other"), PendingName(offset=offset, unique_key="AC12")):
        assert desk.desk.get(name).verdict is V.UNKNOWN
        for verb in PendingVerb:
            given = PendingOrder(verb=verb, name=name, due_ms=NOW + 9 if verb is PendingVerb.MOVE else None)
            assert desk.desk.change(given, NOW).verdict is V.UNKNOWN
    assert desk.desk.get(PendingName(offset=offset, topic="Orders", unique_key="AC11")).verdict is V.DONE
    assert desk.change(offset).verdict is V.DONE
    assert desk.desk.get(PendingName(offset=offset, topic="Other")).verdict is V.UNKNOWN


def test_each_verdict_of_a_cancel() -> None:
    desk = Desk()
    due, gone = desk.send(NOW + 5), desk.send(NOW + DAY_MS)
    desk.world.run(100)
    late = desk.change(due)
    assert (late.verdict, late.when_ms, late.due_ms) == (V.TOO_LATE, NOW + 5, NOW + 5)
    assert late.where.startswith("T/1/")
    done = desk.change(gone)
    assert done.verdict is V.DONE
    again = desk.change(gone)
    assert (again.verdict, again.when_ms, again.due_ms) == (V.ALREADY, desk.now, NOW + DAY_MS)
    for verb, rest in ((PendingVerb.NOW, {}), (PendingVerb.RESTART, {}), (PendingVerb.MOVE, {"due_ms": NOW + 9999})):
        assert desk.change(gone, verb, **rest).verdict is V.CANCELLED
        assert desk.change(due, verb, **rest).verdict is V.TOO_LATE
    for nothing in (1, 5, (1 << 62) + 77, (1 << 63) - 1):
        assert desk.change(nothing).verdict is V.UNKNOWN
    desk.world.run(2 * DAY_MS)
    assert list(desk.delivered()) == [due]


@pytest.mark.parametrize("how", ["stop_and_start", "kill", "power_cut"])
def test_verdicts_outlive_the_process_and_the_files_that_had_the_message(how: str) -> None:
    desk = Desk(3)
    offsets = [desk.send(NOW + 60_000 + number, body=bytes(150)) for number in range(120)]
    assert {desk.change(offset).verdict for offset in offsets} == {V.DONE}
    desk.world.run(20_000)  # nothing is left of the files that had them
    getattr(desk.world, how)()
    with desk.world.plugin.lock:
        forgotten = [offset for offset in offsets if desk.world.plugin.spill.find(offset) is None]
    assert len(forgotten) > 50
    for offset in offsets:
        assert desk.change(offset).verdict is V.ALREADY
        assert desk.change(offset, PendingVerb.NOW).verdict is V.CANCELLED
    assert desk.change(forgotten[0]).when_ms == NOW


@pytest.mark.parametrize("verb", [PendingVerb.MOVE, PendingVerb.NOW])
def test_what_is_due_at_that_time_already_is_durable_when_that_is_said(verb: PendingVerb) -> None:
    """Whoever made it so: a send whose flush mode does not wait, or a move whose caller still does."""
    desk = Desk()
    due_ms = NOW + 1
    offset = desk.send(due_ms)
    desk.world.clock.now_ms = due_ms  # it is due, and the sweeper has not come yet
    journal = desk.world.plugin.spill.journal
    assert journal.synced < journal.written
    rest = {"due_ms": due_ms} if verb is PendingVerb.MOVE else {}
    assert desk.change(offset, verb, **rest).verdict is V.ALREADY
    assert journal.synced == journal.written
    moved = desk.send(NOW + 60_000)
    later: list[Ticket] = []
    desk.desk.change(order(moved, PendingVerb.MOVE, due_ms=due_ms), due_ms, later)  # nobody has waited for it yet
    assert desk.desk.change(order(moved, verb, **rest), due_ms, later).verdict is V.ALREADY
    assert journal.synced < journal.written
    assert [ticket.waits for ticket in later] == [((journal, journal.written),)] * 2
    desk.world.disk.fail_at("sync", {1}, SyncFailedError("cannot sync: a broken disk"), "timewheel")
    with pytest.raises(StoreError, match="a broken disk"):
        desk.change(moved, verb, **rest)


@pytest.mark.parametrize("verb", PendingVerb)
def test_another_version_is_durable_when_that_is_said(verb: PendingVerb) -> None:
    """Else a power cut brings the former one back, and another move gives another message the version that was told."""
    desk = Desk()
    offset = desk.send(NOW + 60_000)
    desk.desk.change(order(offset, PendingVerb.MOVE, due_ms=NOW + 70_000), NOW, [])  # nobody has waited for it yet
    journal = desk.world.plugin.spill.journal
    assert journal.synced < journal.written
    rest = {"due_ms": NOW + 80_000} if verb is PendingVerb.MOVE else {}
    answer = desk.change(offset, verb, version=0, **rest)
    assert (answer.verdict, answer.version, answer.due_ms) == (V.CHANGED, 1, NOW + 70_000)
    assert journal.synced == journal.written


@pytest.mark.parametrize("clears", ["pwrite", "sync"])
def test_no_answer_says_how_a_message_waits_while_a_refused_move_may_still_count(clears: str) -> None:
    desk = Desk()
    offset = desk.send(NOW + 60_000)
    move = partial(desk.change, offset, PendingVerb.MOVE)
    disk, journal = desk.world.disk, desk.world.plugin.spill.journal
    journal.sync()
    Failing(disk, clears)
    with pytest.raises(StoreDoubtError, match="is not known"):
        move(due_ms=NOW + 70_000)
    assert offset in desk.world.plugin.spill.in_doubt
    with pytest.raises(StoreError):
        move(due_ms=NOW + 60_000)
    disk.fault = None
    assert move(due_ms=NOW + 60_000).verdict is V.ALREADY
    assert not desk.world.plugin.spill.in_doubt
    desk.world.kill()
    with desk.world.plugin.lock:
        found = desk.world.plugin.spill.find(offset)
        assert found is not None and found.due_ms == NOW + 60_000


def test_a_query_that_finds_all_there_already_goes_on_where_its_time_was_over(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    for number in range(5):
        desk.send(NOW + 60_000, "Mine", body=b"%d" % number)
    cursors = [""]
    looks = iter([True, False] * 10)
    monkeypatch.setattr(desk.desk._looker, "time_left", lambda: partial(next, looks))
    for _ in range(2):
        bulk = desk.desk.change_matching(
            PendingQuery(topic="Mine"), PendingVerb.MOVE, NOW, dry_run=False, due_ms=NOW + 60_000, after=cursors[-1]
        )
        assert set(bulk.verdicts) == {V.ALREADY}
        assert bulk.next not in cursors
        cursors.append(bulk.next)


def test_messages_that_were_there_already_were_not_changed() -> None:
    desk = Desk()
    for number in range(3):
        desk.send(NOW + 60_000, "Mine", body=b"%d" % number)
    desk.world.disk.fail_at("sync", {1}, SyncFailedError("cannot sync: a broken disk"), "timewheel")
    with pytest.raises(StoreError, match=r"^(?!.*were changed).*a broken disk"):
        desk.desk.change_matching(
            PendingQuery(topic="Mine"), PendingVerb.MOVE, desk.now, dry_run=False, due_ms=NOW + 60_000
        )


def test_moves_by_time_by_interval_now_and_restart() -> None:
    desk = Desk()
    offset = desk.send(NOW + 60_000)
    assert desk.change(offset, PendingVerb.MOVE, due_ms=NOW + 90_000).due_ms == NOW + 90_000
    assert desk.change(offset, PendingVerb.MOVE, due_ms=NOW + 90_000).verdict is V.ALREADY
    assert desk.change(offset, PendingVerb.MOVE, by_ms=-10_000).due_ms == NOW + 80_000
    desk.world.clock.now_ms += 5_000
    restarted = desk.change(offset, PendingVerb.RESTART)
    assert (restarted.verdict, restarted.due_ms, restarted.version) == (V.DONE, NOW + 65_000, 3)
    desk.world.stop_and_start()
    desk.world.clock.now_ms += 1_000
    assert desk.change(offset, PendingVerb.RESTART).due_ms == NOW + 66_000
    assert desk.change(offset, PendingVerb.NOW).due_ms == NOW + 6_000
    assert desk.change(offset, PendingVerb.NOW).verdict is V.ALREADY
    desk.world.run(10)
    assert desk.delivered()[offset][:3] == (5, NOW + 6_000, NOW + 6_000)


def test_compare_and_set() -> None:
    desk = Desk()
    offset = desk.send(NOW + 60_000)
    changed = desk.change(offset, PendingVerb.CANCEL, version=1)
    assert (changed.verdict, changed.version, changed.due_ms) == (V.CHANGED, 0, NOW + 60_000)
    assert desk.change(offset, PendingVerb.MOVE, due_ms=NOW + 70_000, version=0).version == 1
    assert desk.change(offset, PendingVerb.MOVE, due_ms=NOW + 80_000, version=0).verdict is V.CHANGED
    assert desk.change(offset, PendingVerb.CANCEL, version=1).verdict is V.DONE


def test_pages_go_through_all_in_due_order_and_over_a_restart() -> None:
    desk = Desk(5)
    sent = [
        desk.send(NOW + 60_000 + number * 7919 % 40_000, f"T{number % 3}", TAGS=f"g{number % 2}")
        for number in range(90)
    ]
    query = PendingQuery(topic="T1", tag="g0")
    seen, after = [], ""
    while True:
        page = desk.desk.page(query, 4, after)
        assert len(page.rows) <= 4
        seen += page.rows
        after = page.next
        if not after:
            break
        if len(seen) == 8:
            desk.world.kill()
    assert [row.due_ms for row in seen] == sorted(row.due_ms for row in seen)
    assert {row.offset for row in seen} == {offset for number, offset in enumerate(sent) if number % 6 == 4}
    assert desk.desk.count(query).count == 15
    ranged = PendingQuery(due_from_ms=NOW + 70_000, due_to_ms=NOW + 80_000)
    expected = sum(10_000 <= number * 7919 % 40_000 < 20_000 for number in range(90))
    assert desk.desk.count(ranged).count == expected
    assert desk.desk.count(PendingQuery()).count == 90


def test_a_query_by_key_accepted_time_and_property() -> None:
    desk = Desk()
    first = desk.send(NOW + 60_000, __DELAYKEY="order-1", color="red")
    desk.world.clock.now_ms += 1000
    second = desk.send(NOW + 60_000, __DELAYKEY="order-2", color="redder")
    for query, wanted in (
        (PendingQuery(key_prefix="order-"), [first, second]),
        (PendingQuery(key_prefix="order-2"), [second]),
        (PendingQuery(accepted_to_ms=NOW + 1000), [first]),
        (PendingQuery(accepted_from_ms=NOW + 1000), [second]),
        (PendingQuery(properties=(("color", "red"),)), [first]),
        (PendingQuery(properties=(("color", "red"), ("colour", "red"))), []),
        (PendingQuery(due_to_ms=NOW + 60_000), []),
    ):
        assert [row.offset for row in desk.desk.page(query, 10).rows] == wanted, query


def test_a_bulk_cancel_is_dry_at_first_and_resumes_after_a_crash() -> None:
    desk = Desk(7)
    mine = {desk.send(NOW + 60_000 + number, "Mine", body=bytes(100)) for number in range(70)}
    other = {desk.send(NOW + 60_000 + number, "Other") for number in range(30)}
    query = PendingQuery(topic="Mine")
    dry = desk.desk.change_matching(query, PendingVerb.CANCEL, NOW, limit=50)
    assert dry.dry_run
    assert dry.verdicts == {V.DONE: 50}
    assert desk.desk.count(query).count == 70
    done: list[int] = []
    after = ""
    while True:
        part = desk.desk.change_matching(query, PendingVerb.CANCEL, NOW, limit=20, dry_run=False, after=after)
        done += [answer.offset for answer in part.answers]
        assert set(part.verdicts) <= {V.DONE}
        after = part.next
        desk.world.power_cut()
        if not after:
            break
    assert sorted(done) == sorted(mine)
    assert desk.change(done[0]).verdict is V.ALREADY
    desk.world.run(61_000)
    assert set(desk.delivered()) == other
    assert desk.desk.figures().count == 0


def test_bulk_moves_meet_each_message_once() -> None:
    desk = Desk(9)
    for number in range(40):
        desk.send(NOW + 60_000 + number * 1000)
    query = PendingQuery(topic="T", due_to_ms=NOW + 200_000)
    with pytest.raises(PendingError, match="twice"):
        desk.desk.change_matching(query, PendingVerb.MOVE, NOW, limit=10, dry_run=False, by_ms=5_000)
    assert {row.version for row in desk.desk.page(query, 100).rows} == {0}
    moved = desk.desk.change_matching(query, PendingVerb.MOVE, NOW, dry_run=False, by_ms=5_000)
    assert moved.verdicts == {V.DONE: 40}
    rows = desk.desk.page(query, 100).rows
    assert {row.version for row in rows} == {1}
    assert [row.due_ms - NOW for row in rows] == [65_000 + number * 1000 for number in range(40)]
    back = desk.desk.change_matching(query, PendingVerb.MOVE, NOW, limit=30, dry_run=False, by_ms=-1000)
    assert back.verdicts == {V.DONE: 30}
    rest = desk.desk.change_matching(
        query, PendingVerb.MOVE, NOW, limit=30, dry_run=False, by_ms=-1000, after=back.next
    )
    assert rest.verdicts == {V.DONE: 10}
    assert {row.version for row in desk.desk.page(query, 100).rows} == {2}


@pytest.mark.parametrize(
    "query",
    [
        PendingQuery(due_from_ms=5, due_to_ms=5),
        PendingQuery(due_from_ms=-1),
        PendingQuery(due_to_ms=10**5000),
        PendingQuery(accepted_from_ms=DUE_MAX_MS + 2),
        PendingQuery(topic="T", due_to_ms=NOW // 1000),
        PendingQuery(topic="x" * 40_000),
        PendingQuery(key_prefix="k" * 40_000),
        PendingQuery(properties=(("a", "b"),) * 33),
    ],
    ids=range(8),
)
def test_a_query_that_cannot_be_meant_is_refused(query: PendingQuery) -> None:
    desk = Desk()
    desk.send(NOW + 60_000)
    with pytest.raises(PendingError):
        desk.desk.page(query, 10)
    with pytest.raises(PendingError):
        desk.desk.count(query)
    with pytest.raises(PendingError):
        desk.desk.change_matching(query, PendingVerb.CANCEL, NOW, dry_run=False)
    assert desk.desk.figures().count == 1


def test_an_order_that_cannot_be_meant_is_refused_and_changes_nothing() -> None:
    desk = Desk()
    offset = desk.send(NOW + 60_000)
    topic = PendingQuery(topic="T")
    wrong = [
        order(offset, PendingVerb.MOVE),
        order(offset, PendingVerb.MOVE, due_ms=NOW + 1, by_ms=1),
        order(offset, PendingVerb.MOVE, due_ms=10**5000),
        order(offset, PendingVerb.MOVE, by_ms=-(10**5000)),
        order(offset, PendingVerb.MOVE, due_ms=NOW // 1000 + 60),  # seconds
        order(offset, PendingVerb.MOVE, due_ms=NOW - 1_001),
        order(offset, PendingVerb.MOVE, due_ms=0),
        order(offset, PendingVerb.CANCEL, due_ms=NOW),
        PendingOrder(verb=PendingVerb.CANCEL, name=PendingName()),
        PendingOrder(verb=PendingVerb.CANCEL, name=PendingName(key="k")),
    ]
    for given in wrong:
        with pytest.raises(PendingError):
            desk.desk.change(given, NOW)
    assert desk.change(offset, PendingVerb.MOVE, by_ms=DUE_MAX_MS).verdict is V.REFUSED
    back = desk.change(offset, PendingVerb.MOVE, by_ms=-61_001)
    assert (back.verdict, "the verb is now" in back.detail) == (V.REFUSED, True)
    dry = desk.desk.change_matching(topic, PendingVerb.MOVE, NOW, by_ms=-61_001)
    assert dry.verdicts == {V.REFUSED: 1}
    for limit in (0, -1, BULK_MAX + 1, 10**5000):
        with pytest.raises(PendingError):
            desk.desk.change_matching(topic, PendingVerb.CANCEL, NOW, limit=limit, dry_run=False)
    with pytest.raises(PendingError):
        desk.desk.page(topic, PAGE_MAX + 1)
    for after in ("x", "1", "-", "5-", "-5-1", "1-1" + "0" * 5000, "٣-1", "1-zz"):
        with pytest.raises(PendingError):
            desk.desk.page(topic, 1, after)
    with pytest.raises(PendingError):
        desk.desk.change_many([order(offset)] * (BULK_MAX + 1), NOW)
    row = desk.desk.page(topic, 1).rows[0]
    assert (row.version, row.due_ms) == (0, NOW + 60_000)


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    "query",
    [
        PendingQuery(),
        PendingQuery(due_from_ms=0),
        PendingQuery(due_from_ms=NOW),
        PendingQuery(due_to_ms=DUE_MAX_MS),
        PendingQuery(due_from_ms=0, due_to_ms=DUE_MAX_MS),
        PendingQuery(accepted_to_ms=NOW + 1, due_from_ms=NOW),
        PendingQuery(accepted_from_ms=0, accepted_to_ms=DUE_MAX_MS),
        PendingQuery(properties=(("", "v"),)),
    ],
)
def test_a_bulk_change_that_could_be_of_everything_is_refused(query: PendingQuery, dry_run: bool) -> None:
    desk = Desk()
    desk.send(NOW + 60_000)
    with pytest.raises(PendingError, match="could change everything that is pending: name a topic"):
        desk.desk.change_matching(query, PendingVerb.CANCEL, NOW, dry_run=dry_run)
    assert desk.desk.count(query).count in (0, 1)  # to look at everything is nobody's harm
    assert desk.desk.figures().count == 1


def test_a_range_of_some_years_is_enough_for_a_bulk_change() -> None:
    desk = Desk()
    desk.send(NOW + 60_000)
    for name in ("due", "accepted"):
        query = PendingQuery(**{f"{name}_from_ms": NOW - 1000, f"{name}_to_ms": NOW - 1000 + 3660 * 86_400_000})
        assert desk.desk.change_matching(query, PendingVerb.CANCEL, NOW).verdicts == {V.DONE: 1}


def test_a_disk_that_fails_leaves_no_half_answer() -> None:
    desk = Desk(11)
    offset = desk.send(NOW + 60_000)
    disk = desk.world.disk
    disk.fail_at("sync", {1}, SyncFailedError("the disk is broken"))
    with pytest.raises(SyncFailedError):
        desk.change(offset)
    disk.fault = None
    assert desk.change(offset).verdict is V.ALREADY
    other = desk.send(NOW + 60_000)
    disk.fail_at("pwrite", {2}, StoreFullError("full"))  # the row is written, the journal is not
    with pytest.raises(StoreFullError):
        desk.change(other)
    disk.fault = None
    answer = desk.desk.get(PendingName(offset=other))
    assert answer.verdict is V.DONE
    desk.world.run(61_000)
    assert set(desk.delivered()) == {other}
    assert desk.change(other).verdict is V.TOO_LATE


def test_a_message_that_cannot_be_read_gets_no_verdict_about_its_name() -> None:
    desk = Desk()
    offset = desk.send(NOW + 60_000)
    with desk.unreadable():
        for name in (PendingName(offset=offset, topic="T"), PendingName(offset=offset, unique_key="AC11")):
            with pytest.raises(StoreError, match="unreadable"):
                desk.desk.change(PendingOrder(verb=PendingVerb.CANCEL, name=name), NOW)
    assert desk.change(offset).verdict is V.DONE


def test_others_get_their_turn_between_two_slices() -> None:
    desk = Desk()
    for number in range(600):
        desk.send(NOW + 60_000 + number)
    owned: list[bool] = []
    desk.desk.pause_by(lambda: owned.append(desk.world.plugin.lock._is_owned()))
    query = PendingQuery(topic="T")
    desk.desk.change_matching(query, PendingVerb.MOVE, NOW, dry_run=False, due_ms=NOW + 70_000)
    desk.desk.change_matching(query, PendingVerb.CANCEL, NOW, dry_run=False)
    assert len(owned) >= 6
    assert not any(owned), "a pause under the delivery lock holds back everybody"


def test_two_orders_for_one_message_have_one_winner() -> None:
    desk = Desk()
    offset = desk.send(NOW + 60_000)
    first, second = desk.desk.change_many([order(offset, version=0), order(offset, version=0)], NOW)
    assert (first.verdict, second.verdict) == (V.DONE, V.ALREADY)
    other = desk.send(NOW + 60_000)
    move = replace(order(other, PendingVerb.MOVE, version=0), due_ms=NOW + 5)
    answers = desk.desk.change_many([move, replace(move, due_ms=NOW + 6)], NOW)
    assert [answer.verdict for answer in answers] == [V.DONE, V.CHANGED]


@pytest.mark.parametrize("seed", range(6))
def test_a_forecast_counts_what_comes_when(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over segments, indexes and runs, with cancelled and moved messages, against a plain count."""
    if seed % 2:
        monkeypatch.setattr("store.spill.state.outlook.EXACT_READS_MAX", 0)
    desk = Desk(seed + 20)
    rng = desk.world.rng
    offsets: dict[int, int] = {}
    for _ in range(12):
        for _ in range(rng.randrange(1, 40)):
            due_ms = NOW + 20_000 + rng.choice((rng.randrange(5), rng.randrange(60_000)))
            offsets[desk.send(due_ms, body=bytes(rng.randrange(120)))] = due_ms
        for offset in rng.sample(sorted(offsets), min(3, len(offsets))):
            if rng.random() < 0.5:
                desk.change(offset)
                del offsets[offset]
            else:
                offsets[offset] = desk.change(offset, PendingVerb.MOVE, by_ms=rng.randrange(-900, 900)).due_ms
        desk.world.run(rng.choice((50, 900)))
        if rng.random() < 0.2:
            desk.world.kill()
        from_ms = NOW + 20_000 + rng.randrange(-100, 30_000)
        to_ms = from_ms + rng.choice((7, 5_000, 60_000))
        found = desk.desk.forecast(from_ms, to_ms, rng.choice((1, 7, 60)))
        dues = list(offsets.values())
        assert found.total == len(dues) == desk.desk.figures().count
        assert found.overdue + sum(bar.count for bar in found.bars) + found.later == found.total
        assert found.exact or seed % 2
        if found.exact:
            for bar in found.bars:
                last = min(bar.from_ms + found.step_ms, to_ms)
                assert bar.count == sum(bar.from_ms <= due < last for due in dues)
            assert found.overdue == sum(due < from_ms for due in dues)
            query = PendingQuery(due_from_ms=from_ms, due_to_ms=to_ms)
            for counted, within in (
                (desk.desk.count(query), [due for due in dues if from_ms <= due < to_ms]),
                (desk.desk.count(PendingQuery(due_to_ms=to_ms)), [due for due in dues if due < to_ms]),
                (desk.desk.count(PendingQuery()), dues),
            ):
                ends = (min(within), max(within)) if within else (None, None)
                assert (counted.count, counted.first_due_ms, counted.last_due_ms) == (len(within), *ends)
                assert not counted.bytes_exact
            assert desk.desk.count(PendingQuery(topic="T")).bytes_exact
            of_topic = desk.desk.forecast(from_ms, to_ms, 7, "T")
            assert of_topic.total == sum(from_ms <= due < to_ms for due in dues)


def test_only_the_first_forecast_of_a_start_reads_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of runs that it has found. Whoever starts a broker may ask once, for anything, and nobody has to wait."""
    desk = Desk(31)
    dues = [NOW + 20_000 + 37 * number for number in range(300)]
    for due_ms in dues:
        desk.send(due_ms)
    desk.world.run(900)
    read: list[int] = []
    heads = outlook._heads

    def counted(file: File, places: Sequence[int]) -> bytes:
        read.append(len(places))
        return heads(file, places)

    monkeypatch.setattr(outlook, "_heads", counted)
    for reads in (False, True, False):
        if reads:
            desk.world.kill()
            desk.desk.forecast(NOW, NOW + 1, 1)
            assert sum(read) > 10
            read.clear()
        found = desk.desk.forecast(NOW + 20_000, NOW + 32_000, 60)
        assert [bar.count for bar in found.bars] == [
            sum(bar.from_ms <= due_ms < bar.from_ms + found.step_ms for due_ms in dues) for bar in found.bars
        ]
        assert not read


def test_a_cursor_is_a_key() -> None:
    assert cursor_text(None) == ""
    assert cursor_text((5, 0x40)) == "5-40"
