"""Changes that all shards get, with shards that refuse, answer late, or are down. No process, no socket."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from broker.shards import changes as module
from broker.shards.changes import SharedChanges, catch_up, spread
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, request
from store.disk.errors import StoreCorruptError
from store.disk.files import Files

TOPIC = RequestCode.UPDATE_AND_CREATE_TOPIC


class FakeShard:
    """Remembers what it carried out."""

    def __init__(self) -> None:
        self.done: list[tuple[int, dict[str, str], bytes]] = []
        self.trouble: Exception | None = None
        self.code = 0


class World:
    """Three shards and the file of changes."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "changes.json"
        self.shards = [FakeShard(), FakeShard(), FakeShard()]
        self.serving = [0, 1, 2]
        self.changes = SharedChanges(Files(), self.path)

    async def ask(self, index: int, code: int, ext: dict[str, str], body: bytes) -> RemotingCommand:
        shard = self.shards[index]
        await asyncio.sleep(0)
        if shard.trouble is not None:
            raise shard.trouble
        if shard.code == 0:
            shard.done.append((code, ext, body))
        return request(code).reply(shard.code, "no" if shard.code else None)

    def spread(self, command: RemotingCommand) -> RemotingCommand:
        return asyncio.run(spread(self.changes, command, [0, 1, 2], self.serving, self.ask, lambda i: f"b-{i}"))

    def catch_up(self, index: int) -> bool:
        async def work() -> bool:
            late = await catch_up(self.changes, index, self.ask, lambda i: f"b-{i}")
            self.changes.save()
            return late

        return asyncio.run(work())

    def again(self) -> None:
        """The supervisor dies, and another one reads its file."""
        self.changes = SharedChanges(Files(), self.path)


def make(name: str) -> RemotingCommand:
    return request(TOPIC, {"topic": name})


def names(shard: FakeShard) -> list[str]:
    return [ext["topic"] for _, ext, _ in shard.done]


def test_all_have_it_before_the_answer(tmp_path: Path) -> None:
    world = World(tmp_path)
    command = request(TOPIC, {"topic": "a\n\x00\u2028"}, bytes(range(256)))
    assert world.spread(command).code == ResponseCode.SUCCESS
    assert [shard.done for shard in world.shards] == [[(TOPIC, command.ext, command.body)]] * 3
    world.again()
    assert world.changes.entries == []


def test_what_the_first_refuses_is_made_nowhere(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.shards[0].code = 26
    reply = world.spread(make("a"))
    assert (reply.code, reply.remark) == (26, "no")
    assert not world.shards[1].done
    world.again()
    assert world.changes.entries == []


def test_one_that_is_down_is_named_and_gets_it_at_its_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.serving = [0, 2]
    reply = world.spread(make("a"))
    assert reply.code == ResponseCode.SUCCESS
    assert reply.remark == "made on b-0, b-2; b-1 gets it at its start"
    world.again()
    assert world.catch_up(1)
    assert names(world.shards[1]) == ["a"]
    world.again()
    assert not world.catch_up(1)


def test_a_later_shard_that_does_not_confirm_is_an_error_and_gets_it_first(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.shards[1].trouble = TimeoutError()
    reply = world.spread(make("old"))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark == "made on b-0, b-2; b-1 has not confirmed it: TimeoutError: ask again"
    world.shards[1].trouble = None
    assert world.spread(make("new")).code == ResponseCode.SUCCESS
    assert names(world.shards[1]) == ["old", "new"], "in the order in which the others got them"


def test_a_later_shard_that_refuses_is_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.shards[2].code = 1
    reply = world.spread(make("a"))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark == "made on b-0, b-1; b-2 refuses it: no: ask again"


def test_one_that_dies_may_have_made_what_the_next_refuses(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.shards[0].trouble = ConnectionResetError("gone")
    world.shards[1].code = world.shards[2].code = 26
    reply = world.spread(make("a"))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    told = "b-1 refuses it: no; b-2 refuses it: no; b-0 has died and may have made it: ask again"
    assert reply.remark == f"confirmed by no shard; {told}"
    world.shards[0].trouble = None
    world.again()
    assert world.catch_up(0), "it is asked at its start: what it has made, it makes once more"


def test_nobody_serves(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.serving = []
    reply = world.spread(make("a"))
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "confirmed by no shard; no shard serves: ask again",
    )


def test_one_that_dies_meanwhile_gets_it_at_its_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.shards[1].trouble = ConnectionResetError("gone")
    reply = world.spread(make("a"))
    assert (reply.code, reply.remark) == (ResponseCode.SUCCESS, "made on b-0, b-2; b-1 gets it at its start")
    world.shards[1].trouble = None
    assert world.catch_up(1)
    assert names(world.shards[1]) == ["a"]


def test_settings_are_not_written_down(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.serving = [0]
    assert world.spread(request(RequestCode.UPDATE_BROKER_CONFIG, {}, b"logLevel=DEBUG")).code == ResponseCode.SUCCESS
    world.again()
    assert world.changes.entries == []


def test_waiting_changes_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHANGES_MAX", 2)
    world = World(tmp_path)
    world.serving = [0]
    assert [world.spread(make(name)).code for name in "abc"] == [0, 0, ResponseCode.SYSTEM_ERROR]
    assert names(world.shards[0]) == ["a", "b"]
    world.changes.forget(1)
    world.changes.forget(2)
    assert world.spread(make("c")).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("text", ['{"changes": 1}', '{"changes": [{}]}', '{"changes": [[1]]}', "["])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "changes.json"
    path.write_text(text)
    with pytest.raises(StoreCorruptError, match=r"changes\.json"):
        SharedChanges(Files(), path)


@pytest.mark.parametrize("seed", range(20))
def test_all_shards_end_alike_whatever_happens(tmp_path: Path, seed: int) -> None:
    """Random outages, and a supervisor that dies: in the end the last value of each topic is the same everywhere."""
    choice = random.Random(seed)
    world = World(tmp_path)
    for number in range(40):
        event = choice.random()
        index = choice.randrange(3)
        if event < 0.2 and index in world.serving:
            world.serving.remove(index)
        elif event < 0.4 and index not in world.serving:
            world.shards[index].trouble = None
            world.catch_up(index)
            world.serving = sorted([*world.serving, index])
        elif event < 0.5:
            world.shards[index].trouble = choice.choice([None, TimeoutError(), ConnectionError("gone")])
        elif event < 0.6:
            world.again()
        world.spread(request(TOPIC, {"topic": choice.choice("ab"), "perm": str(number)}))
    for index in range(3):
        world.shards[index].trouble = None
        world.catch_up(index)
    ends = [{ext["topic"]: ext["perm"] for _, ext, _ in shard.done} for shard in world.shards]
    assert ends[0] == ends[1] == ends[2]
