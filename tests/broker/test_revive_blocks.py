"""Many popped messages that come again at once, as one block: they are what they would be one by one."""

import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.messages.properties import parse_properties
from store.disk.errors import StoreError
from store.put.plugin_api import PutResult, PutStatus
from tests.broker.core_rig import Rig, properties, sound
from tests.broker.pop_client import Popper
from tests.broker.test_pop import pass_ms, revive

COUNT = 60
RETRY = "%RETRY%G_T"


def rig_with(tmp_path, **settings):
    rig = Rig(tmp_path, **settings)
    rig.now_ms += 1
    rig.client().heartbeat("c", "G")
    return rig


@pytest.fixture
def rig(tmp_path):
    yield from sound(rig_with(tmp_path))


def send_many(rig, count=COUNT, body_bytes=100):
    for number in range(count):
        own = properties(UNIQ_KEY=f"U{number}", KEYS=f"k{number}", TAGS="AB"[number % 2])
        body = b"%d" % number + bytes(body_bytes)
        assert rig.client().send("T", own, body, d=1).code == ResponseCode.SUCCESS


def pop_all(popper, **fields):
    found = []
    while popped := popper.pop(**fields):
        found += popped
    return found


def set_perm(rig, perm):
    fields = {"topic": RETRY, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": perm}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
    assert rig.client().ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == ResponseCode.SUCCESS


def number_of(popped):
    return int(popped.body.rstrip(b"\0"))


def test_they_come_again_once_each_and_are_found_by_their_keys(rig):
    send_many(rig)
    popper = Popper(rig.client())
    first = pop_all(popper)
    assert len(first) == COUNT
    pass_ms(rig, 60_001)
    copier = rig.core.processors.pop.reviver.copier
    assert copier.block_count
    again = pop_all(popper)
    assert sorted(map(number_of, again)) == list(range(COUNT))
    assert {popped.tries for popped in again} == {1}
    for popped in again:
        own = parse_properties(popped.message.properties)
        assert own["UNIQ_KEY"] == f"U{number_of(popped)}" and own["1ST_POP_TIME"]
    fields = {"topic": RETRY, "key": "k7", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 1 << 62}
    reply = rig.client().ask(RequestCode.QUERY_MESSAGE, fields)
    assert reply.code == ResponseCode.SUCCESS and b"7\0" in reply.body
    for popped in again:
        popper.ack(popped)
    assert pop_all(popper) == []
    assert rig.core.processors.pop.in_flight.count == 0
    assert rig.store.check() == []


def test_third_and_fourth_tries_do_so_too(rig):
    send_many(rig)
    popper = Popper(rig.client())
    copier = rig.core.processors.pop.reviver.copier
    for tries in range(4):
        before = copier.block_count
        found = pop_all(popper)
        assert {(len(found), popped.tries) for popped in found} == {(COUNT, tries)}
        pass_ms(rig, 60_001)
        assert copier.block_count > before


def test_slices_that_follow_each_other_wake_the_network_loop_once(tmp_path):
    later = []
    rig = rig_with(tmp_path, call_soon=later.append)
    send_many(rig, 300)
    assert len(pop_all(Popper(rig.client()))) == 300
    set_perm(rig, 6)
    rig.now_ms += 60_001
    later.clear()
    reviver = rig.core.processors.pop.reviver
    reviver.slice_count = 64
    while reviver.step(rig.now_ms) == rig.now_ms:
        rig.store.flusher.sync_all()
    assert reviver.revived_count == 300
    reviver.step(rig.now_ms)
    (call,) = later
    call()
    assert rig.core.offsets.get("G", "T", 0) == 300
    rig.close()


@pytest.mark.pure
def test_what_passes_a_hot_moment_is_put_before_its_part_of_the_slice(rig, monkeypatch):
    send_many(rig, 300)
    assert len(pop_all(Popper(rig.client()))) == 300
    assert rig.client().send("Other", body=b"later").code == ResponseCode.SUCCESS
    (_,) = Popper(rig.client(), topic="Other").pop(invisibleTime=60_010, initMode=0)
    reviver = rig.core.processors.pop.reviver
    reviver.slice_count = 64
    rig.now_ms += 60_000
    reviver.step(rig.now_ms)
    rig.now_ms += 10
    puts = []
    put_batch = rig.store.put_batch
    monkeypatch.setattr(rig.store, "put_batch", lambda batch: puts.append(batch) or put_batch(batch))
    hot = reviver.revived_count
    reviver.step(rig.now_ms)
    (passing,), (tail,) = puts
    assert passing.topic == "%RETRY%G_Other" and set(tail.topics) == {RETRY}
    assert reviver.revived_count - hot > 32
    revive(rig)
    assert reviver.revived_count == 301


def test_more_than_a_segment_holds_goes_one_by_one(tmp_path):
    rig = rig_with(tmp_path, mappedFileSizeCommitLog=30_000)
    send_many(rig, body_bytes=700)
    popper = Popper(rig.client())
    assert len(pop_all(popper)) == COUNT
    pass_ms(rig, 60_001)
    assert rig.core.processors.pop.reviver.copier.block_count
    assert sorted(map(number_of, pop_all(popper))) == list(range(COUNT))
    rig.close()


def slice_over_two_files(tmp_path, count=30):
    """A rig, and the only group of copies of messages that stand on both sides of the end of a CommitLog file."""
    rig = rig_with(tmp_path, mappedFileSizeCommitLog=30_000)
    assert rig.client().send("Other", body=bytes(17_000)).code == ResponseCode.SUCCESS
    send_many(rig, count, 700)
    assert len(pop_all(Popper(rig.client()))) == count
    set_perm(rig, 6)
    places = [rig.store.entry("T", 0, number)[0] for number in range(count)]
    assert min(places) < 30_000 < max(places)
    rig.store.flusher.sync_all()
    rig.core.end_turn()
    batches, _ = rig.core.processors.pop.in_flight.claim(rig.now_ms + 60_001, count)
    (group,) = rig.core.processors.pop.reviver.copier.groups(batches)
    return rig, group


def test_messages_on_both_sides_of_a_files_end_are_copied_together(tmp_path):
    """They are no stretch of one file: they were copied one by one."""
    rig, group = slice_over_two_files(tmp_path)
    copier = rig.core.processors.pop.reviver.copier
    ((block, claims),) = copier.together(group, RETRY)
    assert (block.topics[0], len(claims), copier.block_count) == (RETRY, len(group), 1)
    rig.close()


@pytest.mark.pure
@pytest.mark.parametrize("how", ["retention", "disk"])
def test_what_cannot_be_read_as_a_stretch_is_no_block(tmp_path, monkeypatch, how):
    """Retention takes the first file while it is read; or the disk fails."""
    rig, group = slice_over_two_files(tmp_path)
    store, gather = rig.store, rig.store.gather_hot

    def gathered(spans):
        if how == "disk":
            raise StoreError("a bad sector")
        if store.commit_log.begin == 0:
            store.commit_log.remove_oldest()
        return gather(spans)

    monkeypatch.setattr(store, "read_recent", lambda _: None)
    monkeypatch.setattr(store, "gather_hot", gathered)
    copier = rig.core.processors.pop.reviver.copier
    if how == "disk":
        with pytest.raises(StoreError):
            copier.together(group, RETRY)
    else:
        assert copier.together(group, RETRY) is None
        found = [copy for batch, _, _, _ in group for part in copier.singly(batch, RETRY) for _, copy in part]
        gone = sum(rig.store.entry("T", 0, number)[0] < 30_000 for number in range(30))
        assert [copy is None for copy in found] == [True] * gone + [False] * (30 - gone)
    assert copier.block_count == 0
    monkeypatch.undo()
    rig.close()


def test_a_damaged_one_takes_no_other_with_it(tmp_path):
    rig = rig_with(tmp_path)
    send_many(rig)
    popper = Popper(rig.client())
    found = pop_all(popper)
    rig.store.flusher.sync_all()
    spoilt = found[17]
    (segment,) = (tmp_path / "commitlog").glob("0*")
    with segment.open("r+b") as file:
        file.seek(spoilt.message.offset + 90)
        file.write(b"\xff")
    # What was appended just now is read from memory: more of it, and the disk is asked.
    for _ in range(10):
        rig.client().send("Other", body=bytes(1 << 20))
    pass_ms(rig, 60_001)
    assert len(pop_all(popper)) == COUNT - 1
    assert rig.core.processors.pop.reviver.gone_count == 1
    rig.close()


def test_a_topic_that_takes_no_more_keeps_them_until_it_does(rig):
    send_many(rig)
    popper = Popper(rig.client())
    pop_all(popper)
    set_perm(rig, 4)
    pass_ms(rig, 60_001)
    assert rig.core.processors.pop.in_flight.count == COUNT
    assert rig.core.processors.pop.reviver.failed_count
    set_perm(rig, 6)
    pass_ms(rig, 11_000)
    revive(rig)
    assert sorted(map(number_of, pop_all(popper))) == list(range(COUNT))


@pytest.mark.pure
def test_large_ones_are_put_a_mebibyte_at_a_time(rig, monkeypatch):
    """A slice of 128 messages of 4 MiB was made, and put under one hold of the append lock, as a whole: 1 GiB."""
    for number in range(12):
        own = properties(UNIQ_KEY=f"U{number}")
        rig.client().send("T", own, b"%d" % number + bytes(700_000 if number < 6 else 1_200_000), d=1)
    popper = Popper(rig.client())
    assert len(pop_all(popper)) == 12
    sizes = []
    put_batch = rig.store.put_batch

    def counted(puts):
        sizes.append(sum(put.data_bytes for put in puts))
        return put_batch(puts)

    monkeypatch.setattr(rig.store, "put_batch", counted)
    pass_ms(rig, 60_001)
    assert max(sizes) < 1_300_000, sizes
    assert sorted(map(number_of, pop_all(popper))) == list(range(12))
    assert rig.core.processors.pop.in_flight.check() == []


def test_more_bytes_than_a_put_has_are_several_blocks(rig):
    """All of a slice were copied one by one if they had more than a mebibyte together."""
    send_many(rig, 64, 40_000)
    popper = Popper(rig.client())
    assert len(pop_all(popper, maxMsgNums=8)) == 64
    pass_ms(rig, 60_001)
    assert rig.core.processors.pop.reviver.copier.block_count == 2
    assert sorted(map(number_of, pop_all(popper))) == list(range(64))


@pytest.mark.pure
def test_a_put_that_fails_half_way_leaves_the_rest_for_later(rig, monkeypatch):
    for number in range(12):
        rig.client().send("T", properties(UNIQ_KEY=f"U{number}"), b"%d" % number + bytes(300_000), d=1)
    popper = Popper(rig.client())
    assert len(pop_all(popper)) == 12
    set_perm(rig, 6)
    put_batch, calls = rig.store.put_batch, []

    def refuses(puts):
        calls.append(len(puts))
        if len(calls) == 2:
            return [PutResult(PutStatus.SERVICE_NOT_AVAILABLE, remark="full")] * len(puts)
        return put_batch(puts)

    monkeypatch.setattr(rig.store, "put_batch", refuses)
    pass_ms(rig, 60_001)
    assert len(calls) >= 3
    flight = rig.core.processors.pop.in_flight
    assert flight.check() == []
    pass_ms(rig, 11_000)
    assert sorted(map(number_of, pop_all(popper))) == list(range(12))
    assert flight.check() == []


def test_an_offset_that_is_set_while_copies_are_made_leaves_nothing_to_copy(rig):
    send_many(rig)
    popper = Popper(rig.client())
    pop_all(popper)
    pop = rig.core.processors.pop
    batches, _ = pop.in_flight.claim(rig.now_ms + 60_001, COUNT)
    assert len(batches) > 1
    for batch in batches:
        pop.in_flight.restart(batch.queue, 0)
    pop.reviver.copier.block_min = 0
    for group in pop.reviver.copier.groups(batches):
        assert pop.reviver.copier.together(group, RETRY) is None
    assert [*pop.reviver.copier.singly(batches[0], RETRY)] == []
