"""Copies of many popped messages at once are those that are made one by one, whatever the messages."""

from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from broker.pop.retry_record import mark_text, revived
from remoting.errors import RecordError
from remoting.hosts import NO_HOST
from remoting.layout import OFFSET_AT
from remoting.layout.table import LONG
from remoting.messages.message import Message, encode_record
from remoting.messages.properties import OWN_LEAD, OWN_PROPERTIES
from store.pop.retry_block import Copied, copies_of
from store.put.plugin_api import put_record_of
from tests.broker.test_retry_record import TEXTS, TOPICS, any_record
from tests.store.test_put_block import puts_of
from tests.support import hostile

POP_MS, DUE_MS = 1_700_000_000_000, 1_700_000_060_000
SEEN = {True: 0, False: 0}
BLOCKS = {True: 0, False: 0}


def together(records, topic, name=0x1A):
    """The copies, made as one; the messages have numbers 255, 256, ... in their queue."""
    copied = Copied()
    positions = [(LONG.unpack_from(record.ljust(99), OFFSET_AT)[0], len(record)) for record in records]
    copied.add(name, [255 + row for row in range(len(records))], POP_MS, positions)
    copied.data = b"".join(records)
    return copies_of(copied, topic)


def as_block(records, topic):
    """What a block says of each copy; None if they make none."""
    copies = together(records, topic)
    block = None if copies is None else copies.block(DUE_MS)
    return None if block is None else puts_of(block)


def blanked(record):
    """A record without what the append writes into it: queue offset, position, store time."""
    return record[:20] + record[36:56] + record[64:]


def singly(records, topic, name=0x1A):
    return [
        bytes(revived(record, topic, POP_MS, DUE_MS, mark_text(name, 255 + row)).record)
        for row, record in enumerate(records)
    ]


def plain_record(rng):
    """A record as most clients write it, or as this broker delivers or copies it."""
    texts = [text for text in TEXTS if text.isascii()]
    text = rng.choice(texts) + rng.choice(
        ("", "", "1ST_POP_TIME\x01\x02", "a1ST_POP_TIME\x015\x02", "__TW_POP\x01a.b\x02")
    )
    tries = rng.choice((0, 0, 1, 2, 2**31 - 2))
    message = Message("T", 3, 7, rng.choice((0, 1)), 1_700_000_000_000, NO_HOST, tries, 0, hostile.body(rng, 300), text)
    return encode_record(message, NO_HOST, 5)


@given(st.randoms(use_true_random=False), st.sampled_from(TOPICS), st.booleans())
@example(Random(0), "T", True)
def test_many_at_once(rng, topic, plain):
    records = [plain_record(rng) if plain or rng.randrange(4) else any_record(rng) for _ in range(rng.randrange(1, 6))]
    copies = together(records, topic)
    SEEN[copies is not None] += 1
    if copies is not None:
        assert copies.records() == singly(records, topic)


def test_some_of_them_were_made_together():
    test_many_at_once()
    assert min(SEEN.values()) >= 5, SEEN


def test_all_that_most_clients_write_is_made_together():
    rng = Random(5)
    records = [plain_record(rng) for _ in range(500)]
    copies = together(records, "%RETRY%G_T")
    assert copies is not None
    assert copies.records() == singly(records, "%RETRY%G_T")


@given(st.randoms(use_true_random=False))
def test_a_block_says_of_each_copy_what_is_read_from_its_bytes(rng):
    keys = rng.choice((("UNIQ_KEY",), ("KEYS", "TAGS"), ("UNIQ_KEY", "KEYS"), ("TAGS",), ("a", "UNIQ_KEY", "TAGS")))
    end = rng.choice(("\x02", "\x02", ""))
    texts = ["\x02".join(f"{key}\x01{rng.choice('AB')}{number}" for key in keys) + end for number in range(6)]
    records = [
        encode_record(Message("T", 3, body=hostile.body(rng, 99), properties=text, reconsume_times=number % 2), NO_HOST)
        for number, text in enumerate(texts)
    ]
    topic = "%RETRY%G_T"
    found = as_block(records, topic)
    BLOCKS[found is not None] += 1
    if found is None:
        assert keys == ("TAGS",)
        return
    for put, record in zip(found, singly(records, topic), strict=True):
        wanted = put_record_of(record, DUE_MS)
        assert (put.topic, put.queue_id, put.tags_code, put.keys) == (topic, 0, wanted.tags_code, wanted.keys)
        assert blanked(put.record) == blanked(record)


def test_some_of_them_were_blocks():
    test_a_block_says_of_each_copy_what_is_read_from_its_bytes()
    assert min(BLOCKS.values()) >= 5, BLOCKS


def test_texts_of_other_names_or_of_nothing_make_no_block():
    for texts in (("UNIQ_KEY\x01a\x02", "KEYS\x01a\x02"), ("", ""), ("", "UNIQ_KEY\x01a\x02b\x01c\x02")):
        records = [encode_record(Message("T", properties=text), NO_HOST) for text in texts]
        assert together(records, "%RETRY%G_T").records() == singly(records, "%RETRY%G_T")
        assert as_block(records, "%RETRY%G_T") is None


def test_damage_is_not_copied():
    records = [plain_record(Random(seed)) for seed in range(8)]
    size, spoilt_size = sum(map(len, records)), 0
    for row, record in enumerate(records):
        for at in (0, 4, 8, 28, 84, 88, len(record) - 1):  # size, magic, crc, place, body and what stands behind it
            spoilt = bytearray(record)
            spoilt[at] ^= 1
            mixed = [*records[:row], bytes(spoilt), *records[row + 1 :]]
            copies = together(mixed, "%RETRY%G_T")
            if copies is not None:  # the place itself: what is expected is read from it here
                assert at == 28
            spoilt_size += copies is None
    assert size and spoilt_size == 8 * 6


def test_a_record_that_is_elsewhere_is_not_copied():
    record = plain_record(Random(1))
    copied = Copied()
    copied.add(1, [0], POP_MS, [(4_096, len(record))])
    copied.data = record
    assert copies_of(copied, "T") is None


def in_a_log(rng, count, begin):
    """Plain records in a part of a log that begins at a position, with others between them; each with its place."""
    log, found = bytearray(), []
    for _ in range(count):
        log += rng.randbytes(rng.choice((0, 0, 1, 300)))
        record = bytearray(plain_record(rng))
        LONG.pack_into(record, OFFSET_AT, begin + len(log))
        found.append((begin + len(log), bytes(record)))
        log += record
    rng.shuffle(found)
    return bytes(log), found


def from_a_log(data, begin, found):
    copied = Copied()
    copied.add(
        0x1A, [255 + row for row in range(len(found))], POP_MS, [(place, len(record)) for place, record in found]
    )
    copied.begin, copied.data = begin, data
    return copies_of(copied, "%RETRY%G_T")


@given(st.randoms(use_true_random=False), st.sampled_from((0, 4_096, 1 << 40)))
def test_a_part_of_the_log_serves_as_well_as_records_alone(rng, begin):
    data, found = in_a_log(rng, rng.randrange(1, 6), begin)
    copies = from_a_log(data, begin, found)
    assert copies is not None
    assert copies.records() == singly([record for _, record in found], "%RETRY%G_T")


def test_what_is_not_in_that_part_is_not_copied():
    data, found = in_a_log(Random(3), 4, 4_096)
    assert from_a_log(data, 4_096, found) is not None
    assert from_a_log(data, 4_097, found) is None  # begins behind the first one
    assert from_a_log(data, 4_096, [*found, (4_096 - 200, found[0][1])]) is None
    assert from_a_log(data[:-1], 4_096, found) is None


@given(st.randoms(use_true_random=False), st.booleans())
def test_what_is_spoilt_in_that_part_is_copied_as_one_by_one_or_not_at_all(rng, torn):
    """A flipped bit, or zeros from somewhere on, as after a torn write."""
    data, found = in_a_log(rng, rng.randrange(1, 6), 4_096)
    spoilt, at = bytearray(data), rng.randrange(len(data))
    if torn:
        spoilt[at:] = bytes(len(data) - at)
    else:
        spoilt[at] ^= 1 << rng.randrange(8)
    copies = from_a_log(bytes(spoilt), 4_096, found)
    records = [bytes(spoilt[place - 4_096 :][: len(record)]) for place, record in found]
    if copies is not None:
        assert copies.records() == singly(records, "%RETRY%G_T")
    elif not torn:
        assert records != [record for _, record in found], "only bytes between the records were spoilt"


def test_a_text_without_room_for_the_mark_is_left_to_the_long_way():
    record = encode_record(Message("T", properties="k\x01" + "v" * 32_750 + "\x02"), NO_HOST)
    assert together([record], "T") is None


def test_what_a_broker_sets_has_one_beginning():
    assert all(name.startswith(OWN_LEAD) for name in OWN_PROPERTIES)
    try:
        revived(b"no record", "T", 1, 2, "1a.ff")
    except RecordError:
        return
    raise AssertionError
