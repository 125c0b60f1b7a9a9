"""From properties to a due time: precedence, numbers, refusals, and what is left on the message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_plugin.rules.properties import (
    DUE_MAX_MS,
    PRECEDENCE,
    TimerError,
    delay_level,
    delivered_as,
    disarmed,
    is_half,
    may_be_timed,
    own_properties_of,
    plain_start_ms,
    read_due,
    stamped,
    without_timers,
)
from remoting.messages.message import Message, MessageError
from remoting.messages.properties import format_properties, parse_properties
from store.disk.delay_id import delay_id, id_text
from store.levels.delay_levels import DelayLevels

NOW = 1_700_000_000_000


def text_of(**properties: str) -> str:
    return format_properties(properties)


def test_no_timer_property_is_no_due_time() -> None:
    assert read_due("", NOW) is None
    assert read_due(text_of(KEYS="a", TAGS="b"), NOW) is None


@pytest.mark.parametrize(
    ("name", "value", "due_ms"),
    [
        ("__STARTDELIVERTIME", str(NOW + 5), NOW + 5),
        ("__STARTDELIVERTIME", "0", 0),
        ("__STARTDELIVERTIME", str(NOW - 1), NOW - 1),
        ("TIMER_DELIVER_MS", str(NOW + 7), NOW + 7),
        ("TIMER_DELAY_MS", "1", NOW + 1),
        ("TIMER_DELAY_MS", "0", NOW),
        ("TIMER_DELAY_MS", "007", NOW + 7),
        ("TIMER_DELAY_SEC", "3", NOW + 3000),
        ("__STARTDELIVERTIME", str(DUE_MAX_MS), DUE_MAX_MS),
    ],
)
def test_each_property_means_its_time(name: str, value: str, due_ms: int) -> None:
    assert read_due(text_of(**{name: value}), NOW) == due_ms


def test_the_first_in_precedence_wins_whatever_the_others_say() -> None:
    values = {
        "__STARTDELIVERTIME": str(NOW + 1),
        "TIMER_DELAY_SEC": "2",
        "TIMER_DELAY_MS": "3",
        "TIMER_DELIVER_MS": str(NOW + 4),
    }
    expected = [NOW + 1, NOW + 2000, NOW + 3, NOW + 4]
    assert tuple(values) == PRECEDENCE
    for place, due_ms in enumerate(expected):
        left = {name: values[name] for name in PRECEDENCE[place:]}
        for text in (text_of(**left), text_of(**dict(reversed(left.items())))):
            assert read_due(text, NOW) == due_ms
        # What does not decide is not even read.
        for name in PRECEDENCE[place + 1 :]:
            assert read_due(text_of(**{**left, name: "rubbish"}), NOW) == due_ms


@pytest.mark.parametrize("name", PRECEDENCE)
@pytest.mark.parametrize(
    "value",
    ["+5", " 5", "5 ", "1e3", "5.0", "0x10", "1_000", "", "-", "--5", "five", "٣", "５", "²", "5\n", "\x00", "null"],
)
def test_what_is_not_a_number_is_refused_with_name_and_value(name: str, value: str) -> None:
    with pytest.raises(TimerError) as caught:
        read_due(f"{name}\x01{value}\x02", NOW)
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
    assert "not a whole number" in str(caught.value)


@pytest.mark.parametrize("name", PRECEDENCE)
def test_negative_times_are_refused(name: str) -> None:
    with pytest.raises(TimerError, match="'-5' is negative"):
        read_due(text_of(**{name: "-5"}), NOW)


@pytest.mark.parametrize("name", PRECEDENCE)
@pytest.mark.parametrize("value", [str(DUE_MAX_MS + 1), "9" * 19, "9" * 20, "9" * 4000])
def test_times_beyond_the_year_9999_are_refused(name: str, value: str) -> None:
    with pytest.raises(TimerError, match="year 9999") as caught:
        read_due(text_of(**{name: value}), NOW)
    assert len(str(caught.value)) < 200


def test_there_is_no_limit_unless_one_is_set() -> None:
    far = text_of(TIMER_DELAY_SEC=str(86400 * 365 * 1000))
    assert read_due(far, NOW) == NOW + 86400 * 365 * 1000 * 1000
    assert read_due(text_of(TIMER_DELAY_SEC="10"), NOW, 10_000) == NOW + 10_000
    for properties in ({"TIMER_DELAY_MS": "10001"}, {"__STARTDELIVERTIME": str(NOW + 10_001)}):
        with pytest.raises(TimerError, match="10001 ms ahead, at most 10000") as caught:
            read_due(text_of(**properties), NOW, 10_000)
        assert next(iter(properties.values())) in str(caught.value)


def test_an_empty_pair_is_seen_at_the_end_of_the_text_too() -> None:
    for text in ("TIMER_DELAY_MS\x01", "K\x01v\x02TIMER_DELAY_MS\x01", "TIMER_DELAY_MS\x01\x02K\x01v"):
        with pytest.raises(TimerError, match="''"):
            read_due(text, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "X__STARTDELIVERTIME\x015\x02",
        "__STARTDELIVERTIMEX\x015\x02",
        "K\x01TIMER_DELAY_MS\x02",
        "K\x01__STARTDELIVERTIME\x02",
        "TIMER_DELAY_LEVEL\x013\x02",
        "TIMER_DEL_UNIQKEY\x01T+1\x02",
        "TIMER_OUT_MS\x015\x02",
        "TIMER_DELAY_MS",
    ],
)
def test_names_in_values_and_longer_names_are_not_timers(text: str) -> None:
    assert read_due(text, NOW) is None


def test_the_cheap_test_never_misses() -> None:
    for name in PRECEDENCE:
        assert may_be_timed(text_of(**{name: "1"}))
    assert not may_be_timed(text_of(KEYS="1", TAGS="x", DELAY="3", UNIQ_KEY="1", WAIT="true"))


@pytest.mark.parametrize(
    ("value", "level"), [("1", 1), ("18", 18), ("99", 99), ("0", 0), ("-1", 0), ("+1", 1), ("007", 7), ("-0", 0)]
)
def test_delay_level(value: str, level: int) -> None:
    assert delay_level(text_of(DELAY=value)) == level


@pytest.mark.parametrize("value", ["x", "1.5", " 3", "٣", "1" * 11, "+", "-", "--1"])
def test_a_level_that_is_no_number_is_refused_beside_a_timer_as_it_is_alone(value: str) -> None:
    alone = Message("T", 0, properties=text_of(DELAY=value))
    with pytest.raises(MessageError, match="DELAY"):
        DelayLevels((1000,)).route(alone)
    with pytest.raises(TimerError, match="DELAY"):
        delay_level(text_of(DELAY=value, __STARTDELIVERTIME="5"))


def test_delay_level_is_not_read_from_other_names() -> None:
    assert delay_level(text_of(TIMER_DELAY_MS="5", TIMER_DELAY_SEC="5", XDELAY="5")) == 0
    assert delay_level("") == 0


def test_half_messages() -> None:
    marked = text_of(TRAN_MSG="true")
    assert is_half("", 0x4)
    assert is_half(marked, 0x4)
    assert is_half(marked, 0)
    assert is_half(text_of(TRAN_MSG="TRUE"), 0)
    assert not is_half("", 0)
    assert not is_half(text_of(TRAN_MSG="false"), 0)
    assert not is_half(marked, 0x8)  # committed
    assert not is_half(marked, 0xC)  # rolled back


def test_level_messages_lose_every_timer_and_our_own_names() -> None:
    text = text_of(
        A="1",
        __STARTDELIVERTIME="1",
        TIMER_DELAY_SEC="1",
        TIMER_DELAY_MS="1",
        TIMER_DELIVER_MS="1",
        __TW_ID="1",
        __TW_DUE="1",
        __TW_LEVEL="1:1",
        DELAY="3",
    )
    assert parse_properties(without_timers(text)) == {"A": "1", "DELAY": "3"}


def test_disarming_removes_what_would_delay_again_and_nothing_else() -> None:
    due = NOW + 10
    text = text_of(
        A="1",
        TIMER_DELAY_SEC="1",
        TIMER_DELAY_MS="1",
        TIMER_DELIVER_MS=str(due + 1),
        __STARTDELIVERTIME=str(due),
        __TW_ID="forged",
        TIMER_OUT_MS="99",
        TIMER_ROLL_TIMES="1",
        TIMER_DELAY_LEVEL="2",
        B="2",
    )
    assert parse_properties(disarmed(text, due)) == {
        "A": "1",
        "__STARTDELIVERTIME": str(due),
        "TIMER_OUT_MS": "99",
        "TIMER_ROLL_TIMES": "1",
        "TIMER_DELAY_LEVEL": "2",
        "B": "2",
    }
    assert disarmed(text_of(A="1", __STARTDELIVERTIME=str(due)), due) == text_of(A="1", __STARTDELIVERTIME=str(due))
    assert disarmed(text_of(TIMER_DELIVER_MS="rubbish", A="1"), due) == text_of(A="1")


names = st.sampled_from([*PRECEDENCE, "KEYS", "__TW_ID", "__TW_DUE", "DELAY", "X"])
values = st.one_of(
    st.integers(NOW - 10, NOW + 10).map(str),
    st.integers(-5, 10).map(str),
    st.sampled_from(["", "x", "9" * 19, " 1"]),
)


@given(st.lists(st.tuples(names, values), max_size=8))
def test_what_is_disarmed_is_never_delayed_again(pairs: list[tuple[str, str]]) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    try:
        due = read_due(text, NOW)
    except TimerError:
        return
    due = NOW if due is None else max(due, NOW)
    left = disarmed(text, due)
    again = read_due(left, due)
    assert again is None or again <= due
    assert "__TW_" not in left


_PIECES = st.sampled_from(
    [
        *(
            f"{name}\x01{value}\x02"
            for name in PRECEDENCE
            for value in ("", "5", "007", "-1", "99999999999999", "9" * 15)
        ),
        *("DELAY\x013\x02", "DELAY\x010\x02", "TRAN_MSG\x01true\x02", "TRAN_MSG\x01no\x02", "__TW_ID\x011\x02"),
        *(
            "X__STARTDELIVERTIME\x015\x02",
            "__STARTDELIVERTIME\x01\u0665\x02",
            "__STARTDELIVERTIME\x02",
            "\x02",
            "A\x01",
        ),
        *("A\x01__STARTDELIVERTIME\x015\x02", "__STARTDELIVERTIME\x016", "B\x01b\x02"),
        *("XTIMER_DELIVER_MS\x015\x02", "TIMER_DEL_UNIQKEY\x01a\x02", "TIMER_DELIVER_MS\x016", "TIMER_DELIVER_MS\x02"),
    ]
)


@given(st.lists(_PIECES, max_size=5).map("".join))
def test_the_plain_way_reads_what_the_careful_one_reads_or_nothing(text: str) -> None:
    due_ms = plain_start_ms(text)
    if due_ms >= 0:
        assert read_due(text, 0) == due_ms
        assert disarmed(text, due_ms) == text
        assert not is_half(text, 0)
        assert not delay_level(text)


def test_what_clients_send_goes_the_plain_way() -> None:
    assert plain_start_ms("W\x01true\x02__STARTDELIVERTIME\x011790000000000\x02U\x01A\x02") == 1_790_000_000_000
    assert plain_start_ms("__STARTDELIVERTIME\x011790000000000") == 1_790_000_000_000
    assert plain_start_ms("W\x01true\x02TIMER_DELIVER_MS\x011790000000000\x02U\x01A\x02") == 1_790_000_000_000
    assert plain_start_ms("TRAN_MSG\x01no\x02__STARTDELIVERTIME\x011790000000000\x02") == -1


def test_delay_ids_read_as_the_spill_store_writes_them() -> None:
    for version in (0, 1, 17):
        number = delay_id(3, 77)
        assert f"__TW_ID\x01{id_text(number, version)}\x02" in stamped("A\x011", number, NOW, version)
        text = stamped("A\x011", number, NOW, version)
        assert own_properties_of(text) == (number, version, NOW)
        assert parse_properties(text)["A"] == "1"


@pytest.mark.parametrize(
    "text", ["", "__TW_ID\x011\x02", "__TW_ID\x01zz\x02__TW_DUE\x011\x02", "__TW_ID\x011.x\x02__TW_DUE\x011\x02"]
)
def test_own_properties_that_are_none(text: str) -> None:
    assert own_properties_of(text) is None


def test_a_moved_message_is_restamped_not_stamped_twice() -> None:
    number = delay_id(1, 2)
    text = stamped(text_of(A="1", __STARTDELIVERTIME=str(NOW + 100)), number, NOW + 100)
    later = delivered_as(text, number, NOW + 200, 1)
    assert parse_properties(later) == {
        "A": "1",
        "__STARTDELIVERTIME": str(NOW + 100),
        "__TW_ID": id_text(number, 1),
        "__TW_DUE": str(NOW + 200),
    }
    # Moved to an earlier time, the old one must go: it would delay the message again when it is sent on.
    sooner = delivered_as(later, number, NOW + 50, 2)
    assert parse_properties(sooner) == {"A": "1", "__TW_ID": id_text(number, 2), "__TW_DUE": str(NOW + 50)}
