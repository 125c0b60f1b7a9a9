"""A queue whose messages are all gone begins at 0 again when it is derived: old numbers are not taken for new ones."""

from __future__ import annotations

import shutil
from pathlib import Path

from broker.config import load_config
from store.files import Files
from store.message_store import MessageStore
from store.options import StoreOptions
from tests.broker.core_rig import START_MS, Rig, properties

SEGMENT_BYTES = 12_000


def crashed(root: Path, name: str) -> Path:
    """The files as a kill would leave them."""
    return Path(shutil.copytree(root, root.with_name(name)))


def test_a_level_message_with_a_number_that_was_delivered_before_is_delivered(tmp_path: Path) -> None:
    first = Rig(tmp_path / "first", mappedFileSizeCommitLog=SEGMENT_BYTES)
    client = first.client()
    assert client.send("T", properties(DELAY=1), b"old").code == 0
    first.pass_ms(1_500)
    first.deliver_levels()
    assert [message.body for message in client.messages("T")] == [b"old"]
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
    assert second.client().send("T", properties(DELAY=1), b"new").code == 0
    killed = crashed(killed, "third")  # before any other checkpoint
    second.close()

    third = Rig(killed, mappedFileSizeCommitLog=SEGMENT_BYTES)
    third.pass_ms(5_000)
    third.deliver_levels()
    number = third.store.min_offset("T", 0)
    reply = third.client().pull("T", number)
    assert reply.code == 0
    assert b"new" in reply.body
    third.close()


def test_nor_if_the_start_that_derived_it_was_killed_before_it_said_so(tmp_path: Path) -> None:
    """All other queues begin at 0, so the next start finds no gap: only the empty progress file tells."""
    first = Rig(tmp_path / "first", mappedFileSizeCommitLog=SEGMENT_BYTES)
    client = first.client()
    assert client.send("T", properties(DELAY=1), b"old").code == 0
    first.pass_ms(1_500)
    first.deliver_levels()
    assert [message.body for message in client.messages("T")] == [b"old"]
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
    killed = crashed(killed, "third")
    cut_off.close()

    third = Rig(killed, mappedFileSizeCommitLog=SEGMENT_BYTES)
    assert third.client().send("T", properties(DELAY=1), b"new").code == 0
    killed = crashed(killed, "fourth")  # before any other checkpoint
    third.close()

    fourth = Rig(killed, mappedFileSizeCommitLog=SEGMENT_BYTES)
    fourth.pass_ms(5_000)
    fourth.deliver_levels()
    reply = fourth.client().pull("T", fourth.store.min_offset("T", 0))
    assert reply.code == 0
    assert b"new" in reply.body
    fourth.close()
