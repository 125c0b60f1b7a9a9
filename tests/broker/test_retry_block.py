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
from store.pop.retry_block import Copied, copied_slab
from tests.broker.test_retry_record import TEXTS, TOPICS, any_record
from tests.support import hostile

POP_MS, DUE_MS = 1_700_000_000_000, 1_700_000_060_000
SEEN = {True: 0, False: 0}


def together(records, topic, name=0x1A):
    """The copies, made as one; the messages have numbers 255, 256, ... in their queue."""
    copied = Copied()
    positions = [(LONG.unpack_from(record.ljust(99), OFFSET_AT)[0], len(record)) for record in records]
    copied.add(name, [255 + row for row in range(len(records))], POP_MS, positions)
    copied.data = b"".join(records)
    return copied_slab(copied, topic)


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
    slab = together(records, topic)
    SEEN[slab is not None] += 1
    if slab is not None:
        assert slab.records() == singly(records, topic)


def test_some_of_them_were_made_together():
    test_many_at_once()
    assert min(SEEN.values()) >= 5, SEEN


def test_all_that_most_clients_write_is_made_together():
    rng = Random(5)
    records = [plain_record(rng) for _ in range(500)]
    slab = together(records, "%RETRY%G_T")
    assert slab is not None
    assert slab.records() == singly(records, "%RETRY%G_T")


def test_damage_is_not_copied():
    records = [plain_record(Random(seed)) for seed in range(8)]
    size, spoilt_size = sum(map(len, records)), 0
    for row, record in enumerate(records):
        for at in (0, 4, 8, 28, 84, 88, len(record) - 1):  # size, magic, crc, place, body and what stands behind it
            spoilt = bytearray(record)
            spoilt[at] ^= 1
            mixed = [*records[:row], bytes(spoilt), *records[row + 1 :]]
            slab = together(mixed, "%RETRY%G_T")
            if slab is not None:  # the place itself: what is expected is read from it here
                assert at == 28
            spoilt_size += slab is None
    assert size and spoilt_size == 8 * 6


def test_a_record_that_is_elsewhere_is_not_copied():
    record = plain_record(Random(1))
    copied = Copied()
    copied.add(1, [0], POP_MS, [(4_096, len(record))])
    copied.data = record
    assert copied_slab(copied, "T") is None


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
