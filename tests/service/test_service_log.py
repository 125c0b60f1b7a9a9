"""Each line of an instance's log has its time and level, and is one line whatever a peer has written."""

from __future__ import annotations

import logging
import re

import pytest

from service.link import log
from service.link.log import LINES_MAX, SAY_AGAIN_MS, Teller, start_logging

LINE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR) [a-z._]+: .*"


def test_lines_have_time_and_level_and_cannot_be_forged(capsys: pytest.CaptureFixture[str]) -> None:
    stop = start_logging()
    try:
        tell = Teller(logging.getLogger("service.shard"), "broker-a/3")
        tell.info("owning")
        tell.info("owning")
        tell.warning("remark\n2026-01-01 00:00:00,000 ERROR service: forged\x1b[2J")
        logging.getLogger("asyncio").error("from a library")
    finally:
        stop()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3, "the same again is left out for a while"
    for line in lines:
        assert re.fullmatch(LINE, line), line
    assert "INFO service.shard: broker-a/3: owning" in lines[0]
    assert "\\n2026-01-01" in lines[1] and "WARNING" in lines[1]


def test_an_error_of_the_disk_is_told_once_whatever_its_numbers(caplog: pytest.LogCaptureFixture) -> None:
    """A full disk was told ten times a second, each time with another length, file or directory."""
    tell = Teller(logging.getLogger("service.shard"), "broker-a/3")
    full = "No space left on device (errno 28); make room on this disk"
    for number in range(20):
        tell.warning(f"cannot write {number} bytes at {64 * number} of /c/broker-a-0-{number}/manifest.tmp: {full}")
        tell.warning(f"no room for {number} bytes of delayed messages: a reserve leaves {9 * number} bytes of the disk")
        tell.warning(f"entry {number}: its record in the entry topic is damaged")
    tell.warning(f"cannot sync /c/broker-a-0-1/manifest.tmp: {full}")
    texts = [record.getMessage() for record in caplog.records]
    assert sum("cannot write" in text for text in texts) == 1
    assert sum("no room" in text for text in texts) == 1
    assert sum("cannot sync" in text for text in texts) == 1
    assert sum("entry" in text for text in texts) == 20


def test_a_busy_broker_is_told_once_however_long_requests_wait(caplog: pytest.LogCaptureFixture) -> None:
    """Each refusal of Apache's broker has other numbers: a line for each of thousands of deliveries a second."""
    tell = Teller(logging.getLogger("service.shard"), "broker-a/3")
    for number in range(50):
        busy = f"broker busy, start flow control for a while, period in queue: {number}ms, size of queue: {9 * number}"
        tell.warning(f"deliveries to orders at broker-a are refused: SYSTEM_BUSY: [PCBUSY_CLEAN_QUEUE]{busy}")
    assert len(caplog.records) == 1


def test_what_senders_make_up_floods_no_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry may name another topic that does not exist."""
    caplog.set_level(logging.INFO)
    now_ms = [0]
    monkeypatch.setattr(log, "mono_ms", lambda: now_ms[0])
    tell = Teller(logging.getLogger("service.shard"), "broker-a/3")
    for number in range(5 * LINES_MAX):
        tell.warning(f"deliveries wait: topic made-up-{number} has no route")
    tell.warning("entries are lost", always=True)
    tell.info("owning")
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == LINES_MAX + 2 and texts[-2:] == ["broker-a/3: entries are lost", "broker-a/3: owning"]
    now_ms[0] += SAY_AGAIN_MS
    tell.warning("deliveries wait: topic made-up-0 has no route")
    texts = [record.getMessage() for record in caplog.records][LINES_MAX + 2 :]
    assert texts[0] == f"broker-a/3: {4 * LINES_MAX} more warnings were not logged" and "made-up-0" in texts[1]


def test_what_senders_make_up_hides_no_trouble_of_the_shard(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines of each half a minute went to the topics. That a full disk stops the shard was never told."""
    now_ms = [0]
    monkeypatch.setattr(log, "mono_ms", lambda: now_ms[0])
    tell = Teller(logging.getLogger("service.shard"), "broker-a/3")
    for now_ms[0] in range(0, 10 * SAY_AGAIN_MS, 1000):
        for number in range(1000):
            tell.warning(f"deliveries wait: topic made-up-{number} has no route", many=True)
        tell.warning("the cache takes no entries, so reading waits")
    texts = [record.getMessage() for record in caplog.records]
    assert sum("cache takes no entries" in text for text in texts) == 10
    assert sum("made-up" in text for text in texts) <= 10 * LINES_MAX
