"""Topics and groups that come and go: what an answered create or delete promises, and requests that ask for it.

A name is in a state: not there (None), or there in a certain way (a number of queues, of retries). Every request that
was sent and not answered may have been carried out; one that was answered with success has been, and all that was
answered before it was sent does not count any more. A topic that messages are sent to may also be made by a send, and
may come back with its messages, so of `TOPICS` only that they are there is known.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from remoting.codes import RequestCode
from remoting.json_dialect import dumps
from tests.simulation.kinds import Kind, Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["THERE", "Names", "check_names", "forget_name", "put_name"]

Name = tuple[str, str]
"""What ("topic", "group"), and which."""
State = int | None
THERE = -1
NAMES: tuple[Name, ...] = (("topic", "V"), ("topic", "W"), ("group", "G"), ("group", "H"))


class _Request:
    """A request on its way, and the states of all that were on their way at the same time."""

    __slots__ = ("meanwhile", "name", "state")

    def __init__(self, name: Name, state: State, meanwhile: set[State]) -> None:
        self.name = name
        self.state = state
        self.meanwhile = meanwhile


class Names:
    """What clients know of names. ``may`` has the states that each may be in; a name that is missing is not there."""

    def __init__(self) -> None:
        self.may: dict[Name, set[State]] = {}
        self._asked: dict[int, _Request] = {}

    def clone(self) -> Names:
        """The same knowledge."""
        other = Names()
        other.may = {name: set(states) for name, states in self.may.items()}
        return other  # what is on its way is never answered there

    def begin(self) -> None:
        """A broker has started: what was on its way to the last one will not be answered."""
        self._asked.clear()

    def states(self, name: Name) -> set[State]:
        """The states that a name may be in."""
        return self.may.setdefault(name, {None})

    def ask(self, number: int, name: Name, state: State) -> None:
        """A request is sent."""
        meanwhile: set[State] = set()
        for other in self._asked.values():
            if other.name == name:
                other.meanwhile.add(state)
                meanwhile.add(other.state)
        self._asked[number] = _Request(name, state, meanwhile)
        self.states(name).add(state)

    def sends(self, number: int, topic: str) -> None:
        """A message is sent, which makes its topic if that is missing."""
        name = ("topic", topic)
        if None in self.states(name) or any(asked.name == name for asked in self._asked.values()):
            self.ask(number, name, THERE)

    def answered(self, number: int, good: bool) -> None:
        """A request was answered; without success nothing is known of it."""
        request = self._asked.pop(number, None)
        if good and request is not None:
            self.may[request.name] = {request.state, *request.meanwhile}


def put_name(world: World, rng: Random) -> None:
    """Make something, or change it."""
    what, name = rng.choice(NAMES)
    number = rng.randint(1, 4)
    if what == "topic":
        fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": number, "writeQueueNums": number}
        fields |= {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        world.submit(RequestCode.UPDATE_AND_CREATE_TOPIC, fields, b"", [], "name")
    else:
        body = dumps({"groupName": name, "retryMaxTimes": number})
        world.submit(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body, [], "name")
    world.tell(f"make {what} {name} with {number}")
    world.ledger.names.ask(world.opaque, (what, name), number)


def forget_name(world: World, rng: Random) -> None:
    """Delete something, perhaps what is not there."""
    what, name = rng.choice(NAMES)
    if what == "topic":
        world.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}, b"", [], "name")
    else:
        world.submit(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": name}, b"", [], "name")
    world.tell(f"delete {what} {name}")
    world.ledger.names.ask(world.opaque, (what, name), None)


def check_names(world: World) -> None:
    """Hold the tables of a broker that has just started against what is known of them."""
    core, names = world.core, world.ledger.names
    assert core is not None
    names.begin()
    for name, states in names.may.items():
        found: State = None
        if name[0] == "topic":
            config = core.topics.get(name[1])
            found = None if config is None else config.read_queue_nums
        else:
            group = core.groups.get(name[1])
            found = None if group is None else int(group.fields["retryMaxTimes"])
        if name in NAMES:
            wrong = found not in states
        else:
            found = None if found is None else THERE
            wrong = found is None and None not in states
        if wrong:
            raise Violation(Kind.NAMES, f"after a start {' '.join(name)} is in state {found}, not in one of {states}")
        names.may[name] = {found}  # a start reads what is durable
