"""A damaged message whose body holds whole records: `check --repair` takes none of them for a message of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cli.repair import repair_store
from broker.config.broker_config import BrokerConfig
from remoting.layout import MAGIC_AT
from remoting.messages.message import Message
from tests.broker.core_rig import Rig, properties
from tests.broker.test_forged_records import forge, forged_half
from tests.broker.test_transactions import HALF, bodies

VALUES = {"mappedFileSizeCommitLog": "20000"}
BODY_AT = 88


@pytest.mark.parametrize("behind", [0, 1], ids=["last", "followed"])
@pytest.mark.parametrize("is_half", [False, True], ids=["ordinary", "half message"])
@pytest.mark.parametrize("damaged_at", [MAGIC_AT, BODY_AT, BODY_AT + 300], ids=["magic", "body", "behind it"])
def test_the_records_in_a_damaged_body_stay_what_they_are(
    tmp_path: Path, damaged_at: int, is_half: bool, behind: int
) -> None:
    rig = Rig(tmp_path / "store", **VALUES)
    client = rig.client()
    assert client.send("Orders", properties(UNIQ_KEY="a"), b"before").code == 0
    text = properties(UNIQ_KEY="forged")
    message = forged_half() if is_half else Message("Orders", body=b"forged", properties=text)
    offset = forge(client, message, 1 - is_half, b"x" * 200)
    for number in range(behind):
        assert client.send("Orders", properties(UNIQ_KEY=f"b{number}"), b"behind").code == 0
    rig.close()

    (log,) = (tmp_path / "store" / "commitlog").iterdir()
    data = bytearray(log.read_bytes())
    at = offset - 200 - BODY_AT + damaged_at
    assert data[at] and not offset <= at < offset + 100
    data[at] ^= 0xFF
    log.write_bytes(data)
    said = repair_store(BrokerConfig(tmp_path / "store", dict(VALUES), listen_port=10911))
    assert any("no whole records" in line for line in said)

    again = Rig(tmp_path / "store", **VALUES)
    again.client()
    assert bodies(again.client(), "Orders", 0) == [b"before", *[b"behind"] * behind]
    assert not again.core.halves.undecided and again.store.max_offset(HALF, 0) == 0
    assert bodies(again.client(), "Mine", 0) == []
    assert again.store.check() == []
    again.close()
