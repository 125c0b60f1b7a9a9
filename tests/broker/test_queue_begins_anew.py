"""A queue whose messages are all gone begins at 0 again when it is derived: old numbers are not taken for new ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from broker.config.broker_config import load_config
from remoting.json_dialect import dumps
from store.disk.files import Files
from store.message_store import MessageStore
from store.options import StoreOptions
from tests.broker.core_rig import START_MS, Client, Rig, properties
from tests.simulation.inline import run_inline
from tests.support.simdisk import SimDisk

SEGMENT_BYTES = 12_000


def crashed(root: Path, name: str) -> Path:
    """The files as a kill would leave them."""
    return Path(shutil.copytree(root, root.with_name(name)))


def after_one_delivery(root: Path) -> tuple[Rig, Client]:
    """A broker that has delivered one level message."""
    first = Rig(root, mappedFileSizeCommitLog=SEGMENT_BYTES)
    client = first.client()
    assert client.send("T", properties(DELAY=1), b"old").code == 0
    first.pass_ms(1_500)
    first.deliver_levels()
    assert [message.body for message in client.messages("T")] == [b"old"]
    return first, client


def accepts_and_is_killed(rig: Rig, root: Path, name: str) -> Path:
    """The files as a kill leaves them after one more level message, before any other checkpoint."""
    assert rig.client().send("T", properties(DELAY=1), b"new").code == 0
    killed = crashed(root, name)
    rig.close()
    return killed


def delivers_what_is_new(root: Path) -> None:
    """The next start delivers it."""
    last = Rig(root, mappedFileSizeCommitLog=SEGMENT_BYTES)
    last.pass_ms(5_000)
    last.deliver_levels()
    reply = last.client().pull("T", last.store.min_offset("T", 0))
    assert reply.code == 0
    assert b"new" in reply.body
    last.close()


def test_a_level_message_with_a_number_that_was_delivered_before_is_delivered(tmp_path: Path) -> None:
    first, client = after_one_delivery(tmp_path / "first")
    while first.store.commit_log.end < SEGMENT_BYTES + 1_000:
        assert client.send("T", body=bytes(500)).code == 0
    first.store.take_checkpoint()
    first.store._keeper.finish()
    killed = crashed(tmp_path / "first", "second")
    first.close()

    (killed / "commitlog" / f"{0:020}").unlink()
    shutil.rmtree(killed / "consumequeue")
    second = Rig(killed, mappedFileSizeCommitLog=SEGMENT_BYTES)
    assert second.store.recovery.rebuilt
    delivers_what_is_new(accepts_and_is_killed(second, killed, "third"))


@pytest.mark.parametrize("fails", [False, True])
def test_nor_if_the_start_that_derived_it_ended_before_it_said_so(tmp_path: Path, fails: bool) -> None:
    """It is killed, or it fails later on and closes the store.

    All other queues begin at 0, so the next start finds no gap: only the empty progress file tells.
    """
    first, client = after_one_delivery(tmp_path / "first")
    assert client.send("F", body=bytes(7_000)).code == 0
    assert client.send("U", body=bytes(7_000)).code == 0  # it does not fit: a new segment begins with it
    assert first.store.commit_log.end > SEGMENT_BYTES + 7_000
    first.store.take_checkpoint()
    first.store._keeper.finish()
    killed = crashed(tmp_path / "first", "second")
    first.close()

    (killed / "commitlog" / f"{0:020}").unlink()
    shutil.rmtree(killed / "consumequeue")
    values = {"storePathRootDir": str(killed), "mappedFileSizeCommitLog": str(SEGMENT_BYTES)}
    options = StoreOptions.from_config(load_config(None, values, {}).values)
    cut_off = MessageStore.open(Files(), killed, options, lambda: START_MS + 10_000)
    assert cut_off.recovery.rebuilt
    assert cut_off.queue_ids("SCHEDULE_TOPIC_XXXX") == []
    if fails:
        cut_off.close()
    killed = crashed(killed, "third")
    cut_off.close()

    third = Rig(killed, mappedFileSizeCommitLog=SEGMENT_BYTES)
    delivers_what_is_new(accepts_and_is_killed(third, killed, "fourth"))


@pytest.mark.parametrize("topic, group", [("RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"), ("T", "cg")])
def test_an_offset_beyond_a_queues_end_is_not_believed_of_what_comes_after_a_kill(topic: str, group: str) -> None:
    """It was set to the end, 0, by a start that was killed before the table was written."""
    disk = SimDisk()
    disk.makedirs(Path("/store/config"))
    table = {"offsetTable": {f"{topic}@{group}": {0: 4}}}
    disk.replace_file(Path("/store/config/consumerOffset.json"), dumps(table))
    small = {"mappedFileSizeCommitLog": SEGMENT_BYTES, "timewheelSegmentBytes": 1 << 20}  # a disk in memory
    first = Rig(Path("/store"), files=disk, spawn=run_inline, **small)
    client = first.client()
    for number in range(3):
        half = properties(TRAN_MSG="true", PGROUP="pg", UNIQ_KEY=f"{number:032X}")
        assert client.send("T", half, b"half", f=4).code == 0
        assert client.send("T", body=b"now").code == 0
    second = Rig(Path("/store"), files=disk.crashed(Random(0), None), spawn=run_inline, **small)
    assert list(second.core.halves.undecided) == [0, 1, 2]
    assert second.core.offsets.get(group, topic, 0) == 0
