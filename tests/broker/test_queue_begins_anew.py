"""A queue whose messages are all gone begins at 0 again when it is derived: old numbers are not taken for new ones."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.broker.core_rig import Rig, properties

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
