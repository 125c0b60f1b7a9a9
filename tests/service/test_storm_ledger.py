"""The ledger of a storm finds each kind of fault by its name, and does not blame the service for a client's retry."""

from __future__ import annotations

from collections import Counter

import pytest

from remoting.messages.message import Message, StoredMessage, decode_record, encode_record
from remoting.messages.properties import format_properties, parse_properties
from service.running.entries import REJECTED_TOPIC
from tests.service.storm_ledger import NUMBERS_EACH, Ledger

DUE_MS = 1000
SHARD = "broker-0/0"


def stored(topic: str, offset: int, at_ms: int, **properties: object) -> StoredMessage:
    text = format_properties({name: str(value) for name, value in properties.items()})
    record = encode_record(Message(topic, 0, 0, 0, at_ms, bytes(8), 0, 0, b"x", text), bytes(8), at_ms)
    message = decode_record(record)
    message.queue_offset = offset
    return message


def copy_of(number: int, name: str, at_ms: int = DUE_MS + 5, topic: str = "orders") -> StoredMessage:
    return stored(topic, 0, at_ms, number=number, TW_DELAY_ID=name, TW_DUE_MS=DUE_MS)


class Case:
    """Three messages: 0 and 1 acknowledged; 2 stored without an answer. All delivered, and given to a consumer."""

    def __init__(self, by_entry: bool = True) -> None:
        self.ledger = ledger = Ledger(by_entry=by_entry)
        ledger.received["java"] = Counter()
        for number in range(3):
            ledger.planned(number, DUE_MS)
            ledger.entry(SHARD, stored("TIMEWHEEL", number, 0, number=number, UNIQ_KEY=f"key{number}"))
        ledger.entry(SHARD, stored("TIMEWHEEL", 3, 0, TW_KIND="takeover"))
        ledger.acknowledged(0)
        ledger.acknowledged(1)
        self.copies = [copy_of(number, f"{SHARD}/{number}") for number in range(3)]
        self.given = [f"{SHARD}/{number}" for number in range(3)]
        self.given_at_ms = DUE_MS + 10

    def found(self) -> dict[str, int]:
        """What is wrong: the names that are not 0."""
        for message in self.copies:
            self.ledger.copy(message)
        for name in self.given:
            properties = parse_properties(copy_of(int(name[-1]), name).properties)
            self.ledger.given("java", properties, self.given_at_ms)
        return {name: count for name, count in self.ledger.verdict().items() if count}


@pytest.mark.parametrize("by_entry", [False, True])
def test_nothing_is_wrong(by_entry: bool) -> None:
    case = Case(by_entry)
    if not by_entry:
        case.ledger.received.clear()
        case.given.clear()
    assert case.found() == {}


def test_a_lost_message() -> None:
    case = Case()
    del case.copies[1], case.given[1]
    assert case.found() == {"lost": 1, "undelivered": 1}


def test_a_lost_entry_that_nobody_was_told_of() -> None:
    case = Case()
    del case.copies[2], case.given[2]
    assert case.found() == {"undelivered": 1}


def test_a_second_copy_of_an_entry() -> None:
    case = Case()
    case.copies.append(case.copies[0])
    assert case.found() == {"twice": 1}


def test_a_client_that_sends_again() -> None:
    """Its second entry is delivered, too, and that is counted as its own doing."""
    case = Case()
    case.ledger.planned(NUMBERS_EACH, DUE_MS)
    case.ledger.acknowledged(NUMBERS_EACH)
    for offset in (4, 5):
        entry = stored("TIMEWHEEL", offset, 0, number=NUMBERS_EACH, UNIQ_KEY="same")
        case.ledger.entry(SHARD, entry)
        case.copies.append(copy_of(NUMBERS_EACH, f"{SHARD}/{offset}"))
        case.given.append(f"{SHARD}/{offset}")
    assert case.found() == {}
    assert case.ledger.sent_twice() == {1: 1}


def test_one_of_two_entries_of_a_message_is_lost() -> None:
    case = Case()
    case.ledger.entry(SHARD, stored("TIMEWHEEL", 4, 0, number=0, UNIQ_KEY="key0"))
    assert case.found() == {"undelivered": 1}


def test_a_second_entry_that_no_client_has_sent() -> None:
    """A retry has the same key: another key is somebody else's second entry."""
    case = Case()
    case.ledger.entry(SHARD, stored("TIMEWHEEL", 4, 0, number=0, UNIQ_KEY="other"))
    case.copies.append(copy_of(0, f"{SHARD}/4"))
    case.given.append(f"{SHARD}/4")
    assert case.found() == {"odd": 1}


@pytest.mark.parametrize("name", ["", f"{SHARD}/3", f"{SHARD}/1"])
def test_a_copy_that_belongs_to_no_entry_of_its_number(name: str) -> None:
    """Without a name; of a record of the service; of another message."""
    case = Case()
    case.copies.append(copy_of(0, name))
    found = case.found()
    assert found.pop("strange") == 1
    assert set(found) <= {"twice", "missed by java"}


def test_early_by_what_the_sender_asked_for() -> None:
    """Whatever due time the delivery names."""
    case = Case()
    case.copies[0] = stored("orders", 0, DUE_MS - 1, number=0, TW_DELAY_ID=f"{SHARD}/0", TW_DUE_MS=DUE_MS - 1)
    assert case.found() == {"early": 1}


def test_a_consumer_that_was_not_given_a_copy() -> None:
    case = Case()
    del case.given[1]
    assert case.found() == {"missed by java": 1}


def test_a_consumer_that_was_given_more() -> None:
    """Again is its own doing and counted; what is in no topic is an error; early is early."""
    case = Case()
    case.given.append(case.given[0])
    assert case.found() == {} and case.ledger.given_again() == {"java": 1}
    case = Case()
    case.given.append(f"{SHARD}/9")
    assert case.found() == {"invented by java": 1}
    case = Case()
    case.given_at_ms = DUE_MS - 1
    assert case.found() == {"early": 3}


def test_cancelled_messages() -> None:
    case = Case()
    case.ledger.verdicts = {0: "done", 1: "too_late"}
    assert case.found() == {"undead": 1}
    case = Case()
    case.ledger.verdicts = {0: "done", 1: "too_late"}
    del case.copies[:2], case.given[:2]
    assert case.found() == {"lost": 1, "undelivered": 1, "wrong": 1}
    case = Case()
    case.ledger.not_known(0)
    del case.copies[0], case.given[0]
    assert case.found() == {}


def test_a_rejected_message() -> None:
    case = Case()
    case.copies[0] = copy_of(0, f"{SHARD}/0", topic=REJECTED_TOPIC)
    assert case.found() == {"rejected": 1}
