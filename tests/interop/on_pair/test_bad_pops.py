"""Bad requests about popping and assignment on our broker and on Apache's: the same codes, and nothing changes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.interop.bad_pops import DIFFERENCES, GROUP, QUEUES, TOPIC, Answer, Case, World, cases
from tests.interop.on_pair.conftest import Pair
from tests.support.apache import ApacheBroker
from tests.support.ours import OurBroker
from tests.support.parallel import run_all

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.apache]


class Side:
    """All cases on one broker."""

    def __init__(self, broker: OurBroker | ApacheBroker) -> None:
        self.cases: dict[str, Case] = {}
        self.answers: dict[str, Answer] = {}
        world = World(broker.address, broker.namesrv)
        for case in cases(world):
            self.cases[case.name] = case
            self.answers[case.name] = world.ask(case.code, case.fields, case.body)
        self.before = [world.wire.offset_of(GROUP, TOPIC, queue_id) for queue_id in range(QUEUES)]
        self.acked = world.acked_all()
        self.after = [world.wire.offset_of(GROUP, TOPIC, queue_id) for queue_id in range(QUEUES)]
        world.close()


@pytest.fixture(scope="module")
def sides(pair: Pair) -> tuple[Side, Side]:
    """Our broker and Apache's, at the same time."""
    found: dict[str, Side] = {}

    def run(kind: str, broker: OurBroker | ApacheBroker) -> None:
        found[kind] = Side(broker)

    run_all([lambda: run("ours", pair.ours), lambda: run("apache", pair.apache)])
    return found["ours"], found["apache"]


def test_the_codes_are_apaches(sides: tuple[Side, Side]) -> None:
    ours, apache = sides
    used, wrong = set(), []
    for name, answer in ours.answers.items():
        codes = answer.code, apache.answers[name].code
        if codes[0] != codes[1]:
            rows = [row for row in DIFFERENCES if re.fullmatch(row[0], name) and row[1:3] == codes]
            used.update(rows)
            if not rows:
                wrong.append((name, codes, answer.remark, apache.answers[name].remark[:200]))
    assert not wrong, "\n".join(map(str, wrong))
    assert used == set(DIFFERENCES), "a difference that is there no more"


def test_refusals_hold_the_value(sides: tuple[Side, Side]) -> None:
    ours = sides[0]
    refused = [case for name, case in ours.cases.items() if ours.answers[name].code not in (0, 208, 210)]
    assert len(refused) > 50
    assert not [
        (case.name, ours.answers[case.name].remark)
        for case in refused
        if case.value.lower() not in ours.answers[case.name].remark.lower()
    ]


def test_nothing_has_changed(sides: tuple[Side, Side]) -> None:
    """After all that the messages are where they were, and their handles are as good as ever."""
    for side in sides:
        assert side.acked == [0] * QUEUES
    assert (sides[0].before, sides[0].after) == ([0] * QUEUES, [1] * QUEUES)


def _plain(body: bytes) -> Any:
    document = json.loads(body)
    if "messageQueueAssignments" in document:
        document["messageQueueAssignments"].sort(key=lambda entry: entry["messageQueue"]["queueId"])
    return document


def test_answers_about_assignment_are_apaches(sides: tuple[Side, Side]) -> None:
    names = [name for name in sides[0].answers if name.startswith(("400 ", "402 "))]
    same = [name for name in names if sides[0].answers[name].code == sides[1].answers[name].code == 0]
    assert len(same) >= 5
    for name in same:
        assert _plain(sides[0].answers[name].body) == _plain(sides[1].answers[name].body), name
