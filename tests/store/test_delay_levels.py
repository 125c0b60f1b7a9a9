"""Routing to the delay levels."""

from __future__ import annotations

import doctest

import pytest

import store.levels.delay_levels
from remoting.messages.message import Message, MessageError
from remoting.messages.properties import parse_properties
from store.levels.delay_levels import SCHEDULE_TOPIC, DelayLevels
from store.options import DEFAULT_DELAY_LEVELS, parse_delay_levels

LEVELS = DelayLevels(parse_delay_levels(DEFAULT_DELAY_LEVELS))


def message(properties: str, sys_flag: int = 0) -> Message:
    return Message("T", 3, sys_flag=sys_flag, properties=properties)


@pytest.mark.parametrize(("level", "delay_ms"), [(1, 1_000), (3, 10_000), (18, 7_200_000)])
def test_a_level_message_goes_to_its_levels_queue(level: int, delay_ms: int) -> None:
    sent = message(f"TAGS\x01a\x02DELAY\x01{level}\x02KEYS\x01k\x02")
    assert LEVELS.route(sent) == delay_ms
    assert (sent.topic, sent.queue_id) == (SCHEDULE_TOPIC, level - 1)
    assert parse_properties(sent.properties) == {
        "TAGS": "a",
        "DELAY": str(level),
        "KEYS": "k",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }


def test_a_level_beyond_the_table_is_the_last_one() -> None:
    sent = message("DELAY\x0199\x02")
    assert LEVELS.route(sent) == 7_200_000
    assert sent.queue_id == 17
    assert parse_properties(sent.properties)["DELAY"] == "18"


def test_what_a_client_must_not_bring_is_replaced() -> None:
    sent = message("REAL_TOPIC\x01Evil\x02REAL_QID\x019\x02__TW_LEVEL\x011:0\x02TIMER_DELAY_MS\x015\x02DELAY\x011\x02")
    assert LEVELS.route(sent)
    assert parse_properties(sent.properties) == {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "3"}


@pytest.mark.parametrize("properties", ["", "DELAY\x010\x02", "DELAY\x01-1\x02", "XDELAY\x013\x02", "DELAY\x01\x02"])
def test_without_a_level_nothing_changes(properties: str) -> None:
    sent = message(properties)
    assert LEVELS.route(sent) == 0
    assert (sent.topic, sent.queue_id, sent.properties) == ("T", 3, properties)


@pytest.mark.parametrize(("sys_flag", "routed"), [(0, True), (1, True), (8, True), (4, False), (12, False)])
def test_half_messages_are_left_alone(sys_flag: int, routed: bool) -> None:
    assert bool(LEVELS.route(message("DELAY\x011\x02", sys_flag))) is routed


@pytest.mark.parametrize("value", ["abc", "1.5", "٣", " 1", "1" * 20, "--1"])
def test_a_level_that_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(MessageError, match="DELAY must be a number"):
        LEVELS.route(message(f"DELAY\x01{value}\x02"))


def test_the_examples_in_the_docstrings_run() -> None:
    outcome = doctest.testmod(store.levels.delay_levels)
    assert outcome.attempted and not outcome.failed
