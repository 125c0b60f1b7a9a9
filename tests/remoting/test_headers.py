"""Typed header fields and the headers of the request families."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.headers import (
    EndTransactionHeader,
    HeaderError,
    PullHeader,
    QueryMessageHeader,
    SendBackHeader,
    SendHeader,
    TopicHeader,
    need_int,
    need_long,
    need_str,
    opt_bool,
    opt_int,
    opt_long,
    opt_str,
)

texts = st.text(max_size=6)
SHORT = {
    "a": "g", "b": "t", "c": "TBW102", "d": "4", "e": "-1", "f": "0", "g": "1763600000000", "h": "5",
    "i": "K\x01V\x02", "j": "2", "k": "true", "l": "16", "m": "true", "n": "broker-a",
}  # fmt: skip
LONG = {
    "producerGroup": "g", "topic": "t", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "-1",
    "sysFlag": "0", "bornTimestamp": "1763600000000", "flag": "5", "properties": "K\x01V\x02", "reconsumeTimes": "2",
    "unitMode": "true", "maxReconsumeTimes": "16", "batch": "true",
}  # fmt: skip
PULL = {
    "consumerGroup": "g", "topic": "t", "queueId": "1", "queueOffset": "5", "maxMsgNums": "32", "sysFlag": "3",
    "commitOffset": "4", "suspendTimeoutMillis": "15000", "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip


def test_both_forms_of_a_send_read_the_same():
    short, long = SendHeader.from_v2(SHORT), SendHeader.from_v1(LONG)
    fields = {name: value for name in dir(short) if name[0] != "_" and not callable(value := getattr(short, name))}
    assert len(fields) == 13
    assert {name: getattr(long, name) for name in fields} == fields
    assert short.queue_id == -1
    assert short.max_reconsume_times == 16
    assert SendHeader.from_v2(short.to_v2()).to_v2() == short.to_v2()


def test_optional_fields_of_a_send_may_be_absent():
    header = SendHeader.from_v2({name: SHORT[name] for name in "abcdefgh"})
    assert (header.properties, header.reconsume_times, header.batch) == ("", 0, False)
    assert header.max_reconsume_times is None


def test_booleans_of_a_send_in_any_case():
    assert SendHeader.from_v2(SHORT | {"m": "True", "k": "TRUE"}).batch
    assert not SendHeader.from_v2(SHORT | {"m": "no"}).batch


@pytest.mark.parametrize("name", list("abcdefgh"))
def test_a_missing_field_of_a_send_is_named(name):
    ext = {key: value for key, value in SHORT.items() if key != name}
    with pytest.raises(HeaderError, match=f"field {name} is missing") as caught:
        SendHeader.from_v2(ext)
    assert caught.value.name == name


@pytest.mark.parametrize("name", list("defghjl"))
def test_an_unreadable_number_of_a_send_is_named(name):
    with pytest.raises(HeaderError) as caught:
        SendHeader.from_v2(SHORT | {name: "seven"})
    assert (caught.value.name, caught.value.value) == (name, "seven")


@given(st.dictionaries(st.sampled_from(sorted({*SHORT, *LONG, *PULL})), texts))
def test_any_fields_give_a_header_or_the_header_error(ext):
    for ext_and_more, make in (
        (SHORT | ext, SendHeader.from_v2),
        (LONG | ext, SendHeader.from_v1),
        (PULL | ext, PullHeader),
        (ext, EndTransactionHeader),
        (ext, SendBackHeader),
        (ext, QueryMessageHeader),
        (ext, TopicHeader),
    ):
        try:
            make(ext_and_more)
        except HeaderError:
            pass


def test_a_pull():
    header = PullHeader(PULL)
    assert (header.queue_id, header.offset, header.max_count, header.suspend_ms) == (1, 5, 32, 15000)
    assert (header.subscription, header.max_bytes, header.expression_type) == ("", 0, "TAG")
    with pytest.raises(HeaderError, match="queueOffset"):
        PullHeader(PULL | {"queueOffset": "x"})
    with pytest.raises(HeaderError, match="topic"):
        PullHeader({"consumerGroup": "g"})


def test_numbers_are_read_as_java_reads_them():
    assert need_int({"n": "-2147483648"}, "n") == -(2**31)
    assert need_int({"n": "+7"}, "n") == 7
    assert need_long({"n": "9223372036854775807"}, "n") == 2**63 - 1
    for text in ("", " 1", "1_000", "1.0", "0x10", "2147483648", "-2147483649", "٣٤x", "9" * 5000):
        with pytest.raises(HeaderError, match="field n is not an int32"):
            need_int({"n": text}, "n")
    with pytest.raises(HeaderError, match="missing"):
        need_long({}, "n")
    assert opt_int({}, "n", 9) == opt_int({"n": ""}, "n", 9) == opt_long({}, "n", 9) == 9


def test_texts_and_booleans():
    assert need_str({"s": ""}, "s") == ""
    assert opt_str({}, "s", "d") == "d"
    assert opt_bool({"b": "TRUE"}, "b") is True
    assert opt_bool({"b": "yes"}, "b") is False
    assert opt_bool({}, "b", True) is True
    assert opt_bool({"b": "false"}, "b", True) is False
    with pytest.raises(HeaderError):
        need_str({}, "b")
