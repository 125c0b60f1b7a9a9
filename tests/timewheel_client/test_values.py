"""What a send is made of: delivery times, ids, properties, routes, queues, received messages."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.messages.message import Message as WireMessage
from remoting.messages.message import decode_record, encode_host, encode_record, java_hash
from remoting.messages.properties import format_properties, parse_properties
from timewheel_client.consuming.received import ReceivedMessage
from timewheel_client.values.client_values import properties_text
from timewheel_client.values.delivery_time import delivery_properties, epoch_ms, span_ms
from timewheel_client.values.errors import BrokerError
from timewheel_client.values.routes import MessageQueue, queue_for_key, route_of, template_route
from timewheel_client.values.unique_id import UniqueIds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.integers(0, 253_370_764_800_000_000))
def test_an_instant_is_never_early_and_less_than_a_millisecond_late(us: int) -> None:
    at = EPOCH + timedelta(microseconds=us)
    assert 0 <= epoch_ms(at) * 1000 - us < 1000


def test_instants() -> None:
    berlin = timezone(timedelta(hours=1))
    assert epoch_ms(datetime(2030, 1, 1, 10, tzinfo=berlin)) == epoch_ms(datetime(2030, 1, 1, 9, tzinfo=UTC))
    assert epoch_ms(1_700_000_000_123) == 1_700_000_000_123
    with pytest.raises(ValueError, match="before 1970"):
        epoch_ms(EPOCH - timedelta(microseconds=1001))
    with pytest.raises(ValueError, match="no time zone"):
        epoch_ms(datetime(2030, 6, 1, 12))  # noqa: DTZ001 - it is what is refused
    for wrong in (1.5, "tomorrow", True, None):
        with pytest.raises(TypeError, match="at must be a datetime with its zone or epoch milliseconds"):
            epoch_ms(wrong)  # type: ignore[arg-type]


CENTURY = 946_684_800_000, 4_102_444_799_999  # 2000-01-01T00:00Z, and the last millisecond of 2099


@pytest.mark.parametrize("good", [*CENTURY, CENTURY[0] + 1])
def test_a_number_is_milliseconds_of_this_century(good: int) -> None:
    assert epoch_ms(good) == good


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        (1_893_456_000, "seconds: multiply them by 1,000"),
        (1_893_456_000_000_000, "microseconds"),
        (1_893_456_000_000_000_000, "nanoseconds"),
        (CENTURY[0] - 1, "no time of this century"),
        (CENTURY[1] + 1, "no time of this century"),
        (0, "no time of this century"),
        (-1, "no time of this century"),
    ],
)
def test_a_number_that_cannot_be_milliseconds_of_this_century_is_refused(wrong: int, advice: str) -> None:
    """``at=int(time.time()) + 60`` was delivered at once, and nobody was told."""
    with pytest.raises(ValueError, match=f"at={wrong} .*{advice}"):
        epoch_ms(wrong)


@given(st.integers())
def test_every_number_is_taken_as_it_is_or_refused(number: int) -> None:
    if CENTURY[0] <= number <= CENTURY[1]:
        assert epoch_ms(number) == number
    else:
        with pytest.raises(ValueError, match="century"):
            epoch_ms(number)


def test_the_calendar_s_ends() -> None:
    west, east = timezone(-timedelta(hours=23)), timezone(timedelta(hours=23))
    assert epoch_ms(datetime.max.replace(tzinfo=west)) > 0  # beyond the year 9999 in UTC
    with pytest.raises(ValueError, match="before 1970"):
        epoch_ms(datetime.min.replace(tzinfo=east))


@given(st.integers(0, 10**12))
def test_a_span_is_rounded_up(us: int) -> None:
    assert 0 <= span_ms(timedelta(microseconds=us)) * 1000 - us < 1000


def test_spans() -> None:
    assert span_ms(timedelta.max) == 86_400_000 * 10**9  # not representable when it is negated
    assert span_ms(2.5) == 2500
    assert span_ms(0.001) == 1
    assert span_ms(0.1 + 0.2) == 300  # no millisecond more for the error of floating point
    assert span_ms(47 * 60) == 2_820_000
    with pytest.raises(ValueError, match="negative"):
        span_ms(-1)
    for wrong in ("1s", True, float("nan"), float("inf")):
        with pytest.raises(TypeError):
            span_ms(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("long", [10**400, 1e308, 1e300, 9_223_372_036_854_776])
def test_a_span_beyond_every_message_is_refused(long: float) -> None:
    with pytest.raises(ValueError, match="too long"):
        span_ms(long)


def test_delivery_properties() -> None:
    assert delivery_properties() == ()
    assert delivery_properties(at=CENTURY[0]) == (("TIMER_DELIVER_MS", str(CENTURY[0])),)
    assert delivery_properties(delay=1.5) == (("TIMER_DELAY_MS", "1500"),)
    assert delivery_properties(level=3) == (("DELAY", "3"),)
    with pytest.raises(ValueError, match="exclude"):
        delivery_properties(at=CENTURY[0], level=1)
    for wrong in (0, 19, 99, -1):
        with pytest.raises(ValueError, match=f"level must lie between 1 and 18, found {wrong}"):
            delivery_properties(level=wrong)
    for kind in (True, 1.0, "3"):
        with pytest.raises(TypeError, match="level must be an int from 1 to 18"):
            delivery_properties(level=kind)  # type: ignore[arg-type]


def test_unique_ids_have_the_form_that_tools_take_apart() -> None:
    ids = UniqueIds("192.0.2.7")
    month = datetime(2024, 12, 1, tzinfo=UTC)
    now = int(month.timestamp() * 1000) + 12_345
    first = ids.make(now)
    assert len(first) == 32
    assert first.startswith("C0000207")
    assert int(first[20:28], 16) == 12_345
    assert int(ids.make(int(datetime(2025, 1, 1, tzinfo=UTC).timestamp() * 1000))[20:28], 16) == 0
    assert len({ids.make(now) for _ in range(65_536)}) == 65_536
    assert UniqueIds("::1").make(now).startswith("7F000001")
    assert first[:20] != UniqueIds("192.0.2.7").make(now)[:20]


def test_properties_text() -> None:
    text = properties_text("ID", "t", ["a", "b"], {"x": "y"}, at=CENTURY[0])
    assert parse_properties(text) == {
        "x": "y",
        "TIMER_DELIVER_MS": str(CENTURY[0]),
        "TAGS": "t",
        "KEYS": "a b",
        "UNIQ_KEY": "ID",
    }
    for properties in ({"": "x"}, {"x": ""}, {"x": "a\x02b"}, {"TAGS": "u"}):
        with pytest.raises(ValueError, match="property"):
            properties_text("ID", "t", None, properties)


ROUTE = {
    "brokerDatas": [
        {"brokerName": "b", "brokerAddrs": {"0": "192.0.2.2:1", "1": "192.0.2.3:1"}, "cluster": "c"},
        {"brokerName": "a", "brokerAddrs": {"1": "192.0.2.1:1"}, "cluster": "c"},
    ],
    "queueDatas": [
        {"brokerName": "b", "perm": 6, "readQueueNums": 3, "writeQueueNums": 2},
        {"brokerName": "a", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1},
        {"brokerName": "gone", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1},
        {"brokerName": "b2", "perm": 4, "readQueueNums": 1, "writeQueueNums": 1},
    ],
}


def test_route_leaves_out_what_cannot_be_reached() -> None:
    route = route_of("t", ROUTE)
    assert route.write_queues == (MessageQueue("t", "b", 0), MessageQueue("t", "b", 1))
    assert [(queue.broker_name, queue.queue_id) for queue in route.read_queues] == [
        ("a", 0),
        ("b", 0),
        ("b", 1),
        ("b", 2),
    ]
    assert route.address("b") == "192.0.2.2:1"
    assert route.address("a") == "192.0.2.1:1"
    assert route.address("nobody") is None
    assert route.addresses() == {"192.0.2.1:1", "192.0.2.2:1"}


@pytest.mark.parametrize("data", [None, [], {"brokerDatas": [{}]}, {"queueDatas": [{"brokerName": "a"}]}])
def test_what_is_no_route(data: object) -> None:
    with pytest.raises(ValueError, match="not a route"):
        route_of("t", data)


def test_template_route() -> None:
    default = route_of(
        "TBW102",
        {
            "brokerDatas": [{"brokerName": "a", "brokerAddrs": {"0": "192.0.2.1:1"}}],
            "queueDatas": [{"brokerName": "a", "perm": 7, "readQueueNums": 8, "writeQueueNums": 8}],
        },
    )
    route = template_route("new", default)
    assert route.is_template
    assert route.write_queues == tuple(MessageQueue("new", "a", number) for number in range(4))


def test_a_key_has_the_queue_that_java_gives_it() -> None:
    queues = [MessageQueue("t", "a", number) for number in range(7)]
    assert java_hash("polygenelubricants") == -(2**31)
    assert queue_for_key(queues, "polygenelubricants") == queues[2**31 % 7]
    assert queue_for_key(queues, "a") == queues[97 % 7]


def stored(properties: str, body: bytes = b"x", sys_flag: int = 0) -> ReceivedMessage:
    host = encode_host("192.0.2.1", 10911)
    record = encode_record(
        WireMessage("%RETRY%g", 3, sys_flag=sys_flag, born_ms=1, born_host=host, body=body, properties=properties), host
    )
    return ReceivedMessage(decode_record(record), MessageQueue("%RETRY%g", "a", 3), 99)


def test_received_message() -> None:
    properties = {"RETRY_TOPIC": "t", "TAGS": "tag", "KEYS": "a b", "UNIQ_KEY": "U"}
    text = format_properties({**properties, "__TW_DUE": "17", "TIMER_DELIVER_MS": "18"})
    message = stored(text)
    assert (message.topic, message.tags, message.keys, message.message_id) == ("t", "tag", ["a", "b"], "U")
    assert message.due_ms == 17
    assert message.born_host == ("192.0.2.1", 10911)
    assert message.offset_message_id == "C000020100002A9F0000000000000000"
    assert stored("__STARTDELIVERTIME\x01soon\x02").due_ms is None
    assert stored("").message_id == message.offset_message_id
    assert "U" in repr(message)


def test_bodies_are_decompressed() -> None:
    packed = zlib.compress(b"body " * 100)
    assert stored("", packed, 0x1).body == b"body " * 100
    assert stored("", packed, 0x1 | 3 << 8).body == b"body " * 100
    assert stored("", packed).body == packed
    lz4 = stored("", b"??", 0x1 | 1 << 8)
    assert (lz4.body, lz4.compression) == (b"??", "lz4")
    assert stored("", b"not zlib", 0x1).compression == "zlib"


def test_broker_error_names_its_code() -> None:
    assert "SERVICE_NOT_AVAILABLE (14) from h:1: full" in str(BrokerError(14, "full", "h:1"))
    assert BrokerError(9999, None, "h:1").name == "CODE_9999"
