"""Sharing in virtual time: a shard changes hands when its owner ends, and once when an instance comes; no more.

Real `Membership` and `shares` in each instance, brokers whose lists of members differ for a while, restarted brokers,
instances killed and started in a flurry. What is measured: how often shards move, and how long they wait.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.sharing import JOIN_MS, RESTARTED_MS, Membership, shares, standbys

SHARDS = [("T", f"broker-{number % 2}", number // 2) for number in range(8)]
UNRELEASED_MS = 3400
RELEASED_MS = 300
TICK_MS = 100
LOOK_MS = 10_000
HANDOVER_MS = 5000
Rule = Callable[[str], Membership]


class Instance:
    """One that looks when it is told of a change (some ms later), and every 10 s."""

    def __init__(self, name: str, rule: Rule) -> None:
        self.name, self.view = name, rule(name)
        self.look_ms = self.stopped_until = 0
        self.mine: set[tuple[str, str, int]] = set()
        self.wanted_ms: dict[tuple[str, str, int], int] = {}


class Sharing:
    """Instances, two brokers with their lists, and who delivers for which shard since when."""

    def __init__(self, seed: int, rule: Rule = Membership) -> None:
        self.random, self.rule, self.now, self.count = random.Random(seed), rule, 0, 0
        self.instances: list[Instance] = []
        self.lists: list[set[str]] = [set(), set()]
        self.owner: dict[tuple[str, str, int], str] = {}
        self.ready_ms: dict[tuple[str, str, int], int] = {}
        self.moves: Counter[str] = Counter()
        self.waits: Counter[tuple[str, str, int]] = Counter()

    def start(self) -> None:
        self.count += 1
        instance = Instance(f"{self.random.randrange(10**6)}#{self.count}", self.rule)
        instance.look_ms = self.now
        self.instances.append(instance)
        self._changed(lambda names: names.add(instance.name))

    def kill(self) -> None:
        instance = self.random.choice(self.instances)
        self.instances.remove(instance)
        self._changed(lambda names: names.discard(instance.name))

    def restart_broker(self) -> None:
        """It has forgotten all; who looks and is not known says so again, and so do the others some time later."""
        self._changed(lambda names: names.clear(), which=self.random.randrange(2))

    def _changed(self, change: Callable[[set[str]], None], which: int | None = None) -> None:
        for number, names in enumerate(self.lists):
            if which is None or number == which:
                change(names)
        for instance in self.instances:
            instance.look_ms = min(instance.look_ms, self.now + self.random.randrange(50, 400))

    def run(self, until_ms: int) -> None:
        while self.now < until_ms:
            self.now += TICK_MS
            for instance in self.instances:
                if instance.look_ms <= self.now and instance.stopped_until <= self.now:
                    self._look(instance)
            alive = {instance.name for instance in self.instances if instance.stopped_until <= self.now}
            for shard in SHARDS:
                if self.owner.get(shard) not in alive or self.ready_ms[shard] > self.now:
                    self.waits[shard] += TICK_MS

    def _look(self, instance: Instance) -> None:
        instance.view.saw([set(names) for names in self.lists], self.now)
        for names in self.lists:
            names.add(instance.name)
        next_ms = instance.view.next_ms(self.now) or self.now + LOOK_MS
        instance.look_ms = min(next_ms, self.now + LOOK_MS)
        owners = shares(instance.view.counted(self.now), SHARDS)
        mine = {shard for shard, owner in owners.items() if owner == instance.name}
        for shard in instance.mine - mine:
            if self.owner.get(shard) == instance.name:
                self.owner[shard] = "released"
        for shard in mine:
            before = self.owner.get(shard)
            if before == instance.name:
                continue
            free = before == "released" or before is None
            if not free and before in instance.view.known():
                if self.now - instance.wanted_ms.setdefault(shard, self.now) < HANDOVER_MS:
                    instance.look_ms = self.now + TICK_MS  # it follows the shard until it is released
                    continue
                self.moves["taken from one that lives"] += 1
            instance.wanted_ms.pop(shard, None)
            self.moves["all"] += 1
            self.owner[shard] = instance.name
            self.ready_ms[shard] = self.now + (RELEASED_MS if free else UNRELEASED_MS)
            for other in self.instances:
                if other.name == before:  # it is fenced, and learns from whom
                    other.view.vouch(instance.name)
                    other.look_ms = min(other.look_ms, self.now + 3000)
        instance.mine = mine


def at_once(name: str) -> Membership:
    """The rule as it was: who comes counts, and who is missing in a list has ended."""
    return Membership(name, join_ms=0, restarted_ms=0)


def flurry(seed: int, rule: Rule) -> Sharing:
    """Ten kills within 50 s, each with a new instance after 300 ms; then peace."""
    world = Sharing(seed, rule)
    for _ in range(3):
        world.start()
    world.run(30_000)
    world.moves.clear()
    world.waits.clear()
    for _ in range(10):
        world.kill()
        world.run(world.now + 300)
        world.start()
        world.run(world.now + world.random.randrange(2000, 7500, 100))
    world.run(world.now + 30_000)
    return world


@pytest.mark.parametrize("seed", range(5))
def test_a_flurry_of_kills_moves_what_was_killed_and_little_more(seed: int) -> None:
    world = flurry(seed, Membership)
    assert not world.moves["taken from one that lives"]
    assert world.moves["all"] <= 10 * 8 * 2 / 3 * 1.4, "a kill moves its third, and so does a start that lasts"
    assert set(world.owner.values()) == {instance.name for instance in world.instances}


@pytest.mark.parametrize("seed", range(5))
def test_a_broker_that_has_forgotten_the_members_ends_nobodys_ownership(seed: int) -> None:
    def moves(rule: Rule) -> int:
        world = Sharing(seed, rule)
        world.lists = world.lists[:1]
        for _ in range(3):
            world.start()
        world.run(30_000)
        world.moves.clear()
        world.random.seed(seed)
        world.lists[0].clear()
        world._changed(lambda names: names.discard(""))
        world.run(world.now + 30_000)
        return world.moves["all"]

    assert moves(Membership) == 0
    assert moves(at_once) > 0, "a list of one who asks looked as if the others had ended"


def test_one_that_was_stopped_while_others_came_agrees_after_one_takeover() -> None:
    world = Sharing(3)
    for _ in range(2):
        world.start()
    world.run(20_000)
    world.instances[0].stopped_until = world.now + 8000
    world.start()
    world.run(world.now + 30_000)
    taken = world.moves["taken from one that lives"]
    world.run(world.now + 60_000)
    assert world.moves["taken from one that lives"] == taken
    assert taken <= len(SHARDS), "no shard was fought for"


def test_few_shards_of_the_others_move_when_one_ends() -> None:
    """Dividing the sorted list, as consumers do, moved 17 of 56 and nearly 1 of 5."""
    draw = random.Random(1)
    for members, count, most in ((8, 64, 5.0), (3, 8, 0.5)):
        shards = [("T", "b", number) for number in range(count)]
        moved = 0
        for _ in range(50):
            names = [f"127.0.0.1@{draw.randrange(9999)}#{draw.random()}" for _ in range(members)]
            before, after = shares(names, shards), shares(names[1:], shards)
            moved += sum(before[shard] not in (after[shard], names[0]) for shard in shards)
        assert moved / 50 < most


@given(st.integers(1, 9), st.integers(1, 20), st.integers(0, 99))
def test_shares_are_even_and_do_not_depend_on_the_order(members: int, count: int, salt: int) -> None:
    names = [f"m{salt}-{number}" for number in range(members)]
    shards = [("T", "b", number) for number in range(count)]
    owners = shares(names, shards)
    load = Counter(owners.values())
    assert set(owners) == set(shards)
    assert max(load.values()) - min(load[name] for name in names) <= 1
    assert owners == shares(reversed_of(names), list(reversed(shards)))


def reversed_of(names: list[str]) -> list[str]:
    return list(reversed(names))


@pytest.mark.parametrize("members", range(1, 6))
@pytest.mark.parametrize("count", [1, 4, 7, 16])
def test_each_shard_has_the_standby_that_gets_it(members: int, count: int) -> None:
    names = [f"m{number}" for number in range(members)]
    shards = [("T", "b", number) for number in range(count)]
    owners = shares(names, shards)
    follows = {name: standbys(name, names, [], shards) for name in names}
    for shard, owner in owners.items():
        left = [name for name in names if name != owner]
        heirs = [shares(left, shards)[shard]] if left else []
        assert [name for name in names if name != owner and shard in follows[name]] >= heirs
        assert set(heirs) <= {name for name in names if shard in follows[name]}


def test_who_has_come_follows_what_it_will_own() -> None:
    shards = [("T", "b", number) for number in range(16)]
    later = {shard for shard, owner in shares(["a", "b", "c"], shards).items() if owner == "c"}
    assert standbys("c", ["a", "b"], ["c"], shards) == later


def test_a_broker_is_believed_again_after_a_while() -> None:
    view = Membership("a")
    view.saw([["a", "b"]], 0)
    view.saw([["b"]], 10_000)
    view.saw([["a"]], 11_000)
    assert view.counted(11_000) == {"a", "b"}
    view.saw([["a"]], 10_000 + RESTARTED_MS)
    assert view.counted(10_000 + RESTARTED_MS) == {"a"}


def test_who_dies_before_it_counts_moves_nothing() -> None:
    view = Membership("a")
    view.saw([["a", "b"]], 0)
    view.saw([["a", "b", "c"]], 1)
    assert view.counted(JOIN_MS) == {"a", "b"}
    view.saw([["a", "b"]], JOIN_MS)
    assert view.counted(2 * JOIN_MS) == {"a", "b"}
