"""A real owner takes over by progress that says how far its owner had read; cluster and queues are in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from remoting.codes import FLAG_RESPONSE
from remoting.command import RemotingCommand
from service.core.done_entries import DoneEntries
from service.core.lines import LineKind
from service.core.progress import ProgressRecord, TargetQueue
from service.core.states import OwnerState
from service.link.clock import mono_ms
from service.link.cluster import ClusterLink, Pull
from service.running.entries import line_of, own_record
from service.running.owner import Owner
from service.running.service import DelayService
from service.running.takeover import TakeoverError
from store.disk.errors import StoreFullError
from tests.service.test_deleted_entries import FAR_MS, PROGRESS, QUEUE, Queues, owner_of
from tests.support.wait import until
from timewheel_client.consuming.pulled import BadRecord
from timewheel_client.values.errors import ClientError

COUNT = 300
READ = COUNT + 1
MOVED_MS = FAR_MS + 77


class Slow(Queues):
    """Pulls of what stands below ``READ`` wait until they are let through, a few records at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.below: list[int] = []
        self.faults = 0
        self.rotten: set[int] = set()

    async def pull(self, queue: TargetQueue, offset: int, *, wait: bool) -> Pull:
        if queue == QUEUE and offset < READ:
            await self.gate.wait()
            self.below.append(offset)
            if self.faults:
                self.faults -= 1
                raise ClientError("no answer")
        found = await super().pull(queue, offset, wait=wait)
        bad = [at for at in range(offset, found.next_offset) if queue == QUEUE and at in self.rotten]
        rotten = tuple(BadRecord(b"rotten", "a wrong CRC", at, 99) for at in bad)
        return Pull([one for one in found.messages if one.queue_offset not in bad], found.next_offset, bad=rotten)

    async def connection(self, *_: object) -> None:
        return None

    def send_now(self, _connection: None, queue: TargetQueue, text: str, body: bytes, **_: object) -> Any:
        return asyncio.ensure_future(self._reply(queue, text, body))

    async def _reply(self, queue: TargetQueue, text: str, body: bytes) -> Any:
        sent = await self.send(queue, text, body)
        return RemotingCommand(0, 1, FLAG_RESPONSE, ext={"queueOffset": str(sent.at)})

    async def end_before(self, *_: object) -> int:
        return len(self.logs[QUEUE])


async def served(read: int = READ, **fields: Any) -> Slow:
    """An owner has taken over and read `COUNT` entries; 5 is moved, 6 cancelled, 7 rolled; then it is gone."""
    queues = Slow()
    await queues.send(QUEUE, *own_record(LineKind.TAKEOVER, TW_OWNER="other#1"))
    for number in range(1, READ):
        text = f"TW_TOPIC\x01orders\x02TW_DELIVER_MS\x01{FAR_MS + number}\x02"
        if number == 100:
            text += "TW_KIND\x01roll\x02TW_GENERATION\x010\x02TW_ABOUT\x017\x02TW_ORIGIN\x017\x02"
        await queues.send(QUEUE, text, b"body")
    done = DoneEntries(1)
    done.merge(1, [6, 7])
    moves = {5: MOVED_MS}
    progress = ProgressRecord(
        "broker-e/0", 0, 0, 1, -1, {}, done=done, cancelled=[6], takeovers={0: 0}, owner="other#1",
        **{"read": read, "moves": moves, **fields},
    )  # fmt: skip
    await queues.send(PROGRESS, "", progress.encode())
    await queues.send(QUEUE, *own_record(LineKind.RELEASE, TW_GENERATION=0))
    return queues


async def moved(queues: Slow, entry: int, due_ms: int) -> tuple[int, int]:
    """The owner that has gone has moved an entry after its last progress; returns the command and the verdict."""
    release = queues.logs[QUEUE].pop()
    at = await command(queues, "move", entry, f"TW_DELIVER_MS\x01{due_ms}\x02")
    fields = {"TW_GENERATION": 0, "TW_ABOUT": at, "TW_ENTRY": entry, "TW_VERDICT": "done", "TW_DELIVER_MS": due_ms}
    sent = await queues.send(QUEUE, *own_record(LineKind.VERDICT, **fields))
    release.queue_offset = len(queues.logs[QUEUE])
    queues.logs[QUEUE].append(release)
    return at, sent.at


async def command(queues: Slow, kind: str, about: int, more: str = "") -> int:
    return (await queues.send(QUEUE, f"TW_KIND\x01{kind}\x02TW_ABOUT\x01{about}\x02{more}", b"-")).at


def verdicts(queues: Slow) -> dict[int, str]:
    lines = [line_of(message) for message in queues.logs[QUEUE]]
    return {line.about: line.verdict for line in lines if line.kind is LineKind.VERDICT}


async def owning(queues: Slow, folder: Path) -> tuple[Owner, asyncio.Task[None]]:
    owner = owner_of(queues, folder)
    task = asyncio.ensure_future(owner.run())
    owner.promote(lambda _: False)
    await until(lambda: task.done() or owner.shard.state is OwnerState.OWNING)
    if task.done():
        task.result()
    return owner, task


async def left(owner: Owner, task: asyncio.Task[None]) -> None:
    owner.leave()
    await task


def due_of(owner: Owner, offset: int) -> int:
    assert owner.cache is not None
    (found,) = owner.cache.look([offset])
    return -1 if found is None else found.due_ms


def test_it_owns_before_it_has_read_what_waits(tmp_path: Path) -> None:
    async def story() -> None:
        queues = await served()
        await queues.send(QUEUE, f"TW_TOPIC\x01orders\x02TW_DELIVER_MS\x01{FAR_MS}\x02", b"body")
        owner, task = await owning(queues, tmp_path)
        assert not queues.below and owner.cache is not None and owner.cache.pending_count == 1
        assert not owner.shard.backfill.is_whole
        queues.faults = 2
        queues.gate.set()
        await until(lambda: owner.shard.backfill.is_whole and owner.is_filled)
        await until(lambda: not owner.shard.commands.changing)
        assert owner.cache.pending_count == COUNT + 1 - 2
        assert [due_of(owner, at) for at in (4, 5, 6, 7, 100)] == [FAR_MS + 4, MOVED_MS, -1, -1, FAR_MS + 100]
        assert queues.below[0] == 1, "it begins at the oldest entry that is not done"
        await left(owner, task)

    asyncio.run(story())


def test_commands_about_what_is_not_read_wait_and_are_true(tmp_path: Path) -> None:
    """Cancelled under its first name is what was rolled; and nothing is said to be delivered that waits."""

    async def story() -> None:
        queues = await served()
        new = (await queues.send(QUEUE, f"TW_TOPIC\x01orders\x02TW_DELIVER_MS\x01{FAR_MS}\x02", b"body")).at
        old = [await command(queues, "cancel", at) for at in (4, 5, 6, 7)]
        old.append(await command(queues, "move", 8, f"TW_DELIVER_MS\x01{MOVED_MS}\x02"))
        question = await queues.send(QUEUE, "TW_KIND\x01ask\x02", b'{"what": "count"}')
        now = await command(queues, "cancel", new)
        owner, task = await owning(queues, tmp_path)
        await until(lambda: now in verdicts(queues))
        assert verdicts(queues) == {now: "done"}
        queues.gate.set()
        await until(lambda: verdicts(queues).keys() >= {*old, question.at})
        assert [verdicts(queues)[at] for at in old] == ["done", "done", "already", "done", "done"]
        await until(lambda: due_of(owner, 8) == MOVED_MS)
        await until(lambda: [due_of(owner, at) for at in (4, 5, 100, new)] == [-1] * 4)
        answers = [m.body for m in queues.logs[QUEUE] if line_of(m).about == question.at and b"count" in m.body]
        assert answers and str(COUNT - 2).encode() in answers[0], "the answer counts all that waits"
        await left(owner, task)

    asyncio.run(story())


def answers(queues: Slow, question: int) -> list[bytes]:
    return [message.body for message in queues.logs[QUEUE] if line_of(message).about == question]


def test_a_question_waits_also_if_it_names_an_entry(tmp_path: Path) -> None:
    """It is about all that waits, whatever it names: it was answered from what the cache had until then."""

    async def story() -> None:
        queues = await served()
        question = await queues.send(QUEUE, "TW_KIND\x01ask\x02TW_ABOUT\x01999999\x02", b'{"what": "count"}')
        new = (await queues.send(QUEUE, f"TW_TOPIC\x01orders\x02TW_DELIVER_MS\x01{FAR_MS}\x02", b"body")).at
        now = await command(queues, "cancel", new)
        owner, task = await owning(queues, tmp_path)
        await until(lambda: now in verdicts(queues))
        assert not answers(queues, question.at)
        queues.gate.set()
        await until(lambda: bool(answers(queues, question.at)))
        assert str(COUNT - 2).encode() in answers(queues, question.at)[0]
        await left(owner, task)

    asyncio.run(story())


def test_a_question_in_the_older_part_is_answered_by_its_body(tmp_path: Path) -> None:
    async def story() -> None:
        queues = await served()
        last = queues.logs[QUEUE][READ - 1]
        last.properties, last.body = "TW_KIND\x01ask\x02", b'{"what": "count"}'
        queues.gate.set()
        owner, task = await owning(queues, tmp_path)
        await until(lambda: bool(answers(queues, READ - 1)))
        assert str(COUNT - 3).encode() in answers(queues, READ - 1)[0]
        await left(owner, task)

    asyncio.run(story())


def test_others_run_while_all_that_was_read_is_in_the_cache(tmp_path: Path) -> None:
    """Pulls are answered at once. Commands and moves were carried out only while the cache lacked something: never."""

    async def story() -> None:
        queues = await served()
        owner, task = await owning(queues, tmp_path)
        turns: list[bool] = []
        queues.gate.set()
        while not owner.shard.backfill.is_whole:
            await asyncio.sleep(0)
            turns.append(owner.is_filled)
        assert len(turns) > COUNT // 32 and all(turns)
        await left(owner, task)

    asyncio.run(story())


def test_a_standby_under_steady_load_reads_the_older_part(tmp_path: Path) -> None:
    """There is always one more record. It has seen the end a moment ago."""

    async def story() -> None:
        owner = owner_of(await served(), tmp_path)
        assert not owner.may_backfill
        owner.queue_end.saw(True, mono_ms())
        owner.queue_end.saw(False, mono_ms())
        assert owner.may_backfill
        owner.queue_end.failed()
        assert not owner.may_backfill

    asyncio.run(story())


def test_a_move_that_comes_before_its_entry_is_read_holds(tmp_path: Path) -> None:
    """The last owner gave its verdict after its progress; the cache does not have the entry when it is read."""

    async def story() -> None:
        queues = await served()
        await moved(queues, 9, MOVED_MS)
        owner, task = await owning(queues, tmp_path)
        assert owner.shard.commands.changing == {5: MOVED_MS, 9: MOVED_MS}
        queues.gate.set()
        await until(lambda: not owner.shard.commands.changing)
        assert due_of(owner, 9) == due_of(owner, 5) == MOVED_MS
        await left(owner, task)

    asyncio.run(story())


def service_of(queues: Slow, folder: Path) -> DelayService:
    return DelayService(cast(ClusterLink, queues), "127.0.0.1:1", folder, 1 << 40)


async def ended(service: DelayService) -> bool:
    """Have the shard taken over; True if that has ended, False if it is owned."""
    service._take_over(QUEUE)
    owner = service._owners[QUEUE]
    await until(lambda: QUEUE not in service._runs or owner.shard.state is OwnerState.OWNING)
    return QUEUE not in service._runs


@pytest.mark.parametrize("warm", [False, True])
def test_what_cannot_be_read_may_be_a_verdict_and_then_everything_is_read(tmp_path: Path, warm: bool) -> None:
    """Its command stands in the older part, and the sender was told that the entry is moved."""

    async def story() -> None:
        queues = await served()
        first = queues.logs[QUEUE][200]
        first.properties, first.body = f"TW_KIND\x01move\x02TW_ABOUT\x019\x02TW_DELIVER_MS\x01{MOVED_MS}\x02", b"-"
        _, at = await moved(queues, 8, MOVED_MS)  # whatever it was, it cannot be read any more
        queues.rotten.add(at)
        queues.gate.set()
        service = service_of(queues, tmp_path)
        if warm:
            service._stand_by({QUEUE})
            await until(lambda: QUEUE not in service._runs)
        assert warm or await ended(service), "it is owned without regard to what could not be read"
        assert service._not_before[QUEUE] <= mono_ms() and service.tally.failed == 1 and not service.tally.takeovers
        queues.below.clear()
        assert not await ended(service) and queues.below[0] == 0, "not everything was read"
        await until(lambda: verdicts(queues).keys() >= {200, at - 1})
        await until(lambda: due_of(service._owners[QUEUE], 9) == MOVED_MS == due_of(service._owners[QUEUE], 8))
        run = service._runs[QUEUE]
        service._owners[QUEUE].leave()
        await run
        assert not service._to_be_read, "the next one need not read everything"

    asyncio.run(story())


def test_who_comes_after_one_that_did_not_end_reading_reads_on(tmp_path: Path) -> None:
    """Nothing of the older part is done, and its moves are passed on."""

    async def story() -> None:
        queues = await served()
        owner, task = await owning(queues, tmp_path / "a")
        await until(lambda: len(queues.logs[PROGRESS]) > 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        owner, task = await owning(queues, tmp_path / "b")
        assert owner.shard.backfill.at == owner.shard.done.low == 1
        queues.gate.set()
        await until(lambda: owner.shard.backfill.is_whole and owner.is_filled)
        await until(lambda: not owner.shard.commands.changing)
        assert owner.cache is not None and owner.cache.pending_count == COUNT - 2
        assert due_of(owner, 5) == MOVED_MS
        await left(owner, task)

    asyncio.run(story())


def test_a_disk_that_is_full_for_a_while_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.running.backfilling.PAUSE_MS", 10)

    async def story() -> None:
        queues = await served()
        owner, task = await owning(queues, tmp_path)
        assert owner.cache is not None
        add, left_over = owner.cache.add, [3]

        def full(waiting: Any) -> None:
            if waiting and left_over[0]:
                left_over[0] -= 1
                raise StoreFullError("no room")
            add(waiting)

        owner.cache.add = full  # type: ignore[method-assign]
        queues.gate.set()
        await until(lambda: not owner.is_filled)
        await until(lambda: owner.shard.backfill.is_whole and owner.is_filled and not owner.shard.commands.changing)
        assert owner.cache.pending_count == COUNT - 2 and due_of(owner, 5) == MOVED_MS
        await left(owner, task)

    asyncio.run(story())


def test_what_the_cluster_deletes_meanwhile_is_passed_over_and_counted_next(tmp_path: Path) -> None:
    """The rest is delivered. A command about it is answered, and the next takeover counts what is lost."""

    async def story() -> None:
        queues = await served()
        owner, task = await owning(queues, tmp_path / "a")
        queues.begins[QUEUE] = 51
        queues.gate.set()
        await until(lambda: owner.shard.backfill.is_whole and owner.is_filled and not owner.shard.commands.changing)
        assert owner.cache is not None and owner.cache.pending_count == COUNT - 50
        at = await command(queues, "move", 20, f"TW_DELIVER_MS\x01{MOVED_MS}\x02")
        await until(lambda: at in verdicts(queues))
        assert verdicts(queues)[at] == "unknown" and owner.shard.done.low == 1
        await left(owner, task)
        owner, task = await owning(queues, tmp_path / "b")
        await until(lambda: owner.shard.backfill.is_whole and owner.is_filled)
        assert owner.tally.expired == 50 - 2 and owner.cache is not None
        assert owner.cache.pending_count == COUNT - 50
        await left(owner, task)

    asyncio.run(story())


def test_a_follower_of_which_the_cluster_has_deleted_what_it_had_not_read_reads_anew(tmp_path: Path) -> None:
    async def story() -> None:
        queues = await served()
        owner = owner_of(queues, tmp_path)
        task = asyncio.ensure_future(owner.run())
        await until(lambda: owner.shard.read_from == READ + 1)
        queues.begins[QUEUE] = 51
        owner.promote(lambda _: False)
        with pytest.raises(TakeoverError, match="reading anew"):
            await task

    asyncio.run(story())


def test_also_one_that_has_passed_over_what_the_cluster_had_deleted(tmp_path: Path) -> None:
    """It would own the shard without these entries, and count them as lost only when it is taken over itself."""

    async def story() -> None:
        queues = await served()
        owner = owner_of(queues, tmp_path / "a")
        task = asyncio.ensure_future(owner.run())
        await until(lambda: owner.shard.read_from == READ + 1)
        queues.begins[QUEUE] = 51
        queues.gate.set()
        await until(lambda: owner.shard.backfill.is_whole and owner.is_filled)
        owner.promote(lambda _: False)
        await until(lambda: task.done() or owner.shard.state is OwnerState.OWNING)
        assert task.done(), "it owns the shard without them"
        with pytest.raises(TakeoverError, match="reading anew"):
            task.result()
        owner, task = await owning(queues, tmp_path / "b")
        assert owner.tally.expired == 50 - 2
        await left(owner, task)

    asyncio.run(story())


@pytest.mark.parametrize(
    "fields",
    [
        {"read": -1},
        {"read": 0},
        {"read": READ + 1000},
        {"read": 1 << 70},
        {"takeovers": {}},
        {"read": cast(int, "12")},
        {"read": cast(int, None)},
        {"moves": cast("dict[int, int]", {5: "x"})},
    ],
)
def test_without_sense_in_it_everything_is_read(fields: dict[str, Any], tmp_path: Path) -> None:
    async def story() -> None:
        queues = await served()
        queues.logs[PROGRESS].clear()
        values: dict[str, Any] = {"read": READ, "takeovers": {0: 0}, "moves": {5: MOVED_MS}, **fields}
        progress = ProgressRecord("broker-e/0", 0, 0, 1, -1, {}, done=DoneEntries(1), owner="other#1", **values)
        await queues.send(PROGRESS, "", progress.encode())
        queues.gate.set()
        owner, task = await owning(queues, tmp_path)
        assert queues.below and owner.cache is not None and owner.cache.pending_count >= COUNT - 1
        assert owner.shard.backfill.until == 0
        await left(owner, task)

    asyncio.run(story())
