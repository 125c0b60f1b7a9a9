"""The command as a user calls it, on our broker alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.wait import happens

ROOT = Path(__file__).resolve().parents[2]


def measured(tmp_path: Path, within_s: float, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Run a quick benchmark of our broker; its standard output, and its results."""
    (tmp_path / "stores").mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "broker.cli", "bench", "--quick", "--peers", "", *arguments),
            *("--out", str(tmp_path / "out"), "--dir", str(tmp_path / "stores")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((tmp_path / "out" / "results.json").read_text())


@pytest.mark.process
def test_send_measures_our_broker_and_cleans_up(tmp_path: Path) -> None:
    kinds = ("--kind", "timed far", "--shape", "16x1", "--shape", "16x1 b100", "--flush", "SYNC_FLUSH")
    said, content = measured(tmp_path, 120, "send", "--seconds", "0.3", *kinds)
    assert "16x1 b100" in said
    accepted = [f for f in content["sections"][0]["figures"] if f["metric"] == "accepted"]
    assert [figure["case"]["shape"] for figure in accepted] == ["16x1", "16x1 b100"]
    assert all(figure["median"] > 0 for figure in accepted)
    assert content["machine"]["limits"]["disk_append_sync_us"] > 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert all(f"{round(figure['median']):,}" in page for figure in accepted)
    assert list((tmp_path / "stores").iterdir()) == []


@pytest.mark.process
def test_restart_measures_a_start_after_a_clean_stop_and_after_a_kill(tmp_path: Path) -> None:
    _, content = measured(tmp_path, 240, "restart", "--pending", "1000")
    found = {(f["case"].get("after", ""), f["metric"]): f["median"] for f in content["sections"][0]["figures"]}
    starts = {(after, f"start to first {what}") for after in ("", "kill -9") for what in ("accepted", "due delivered")}
    assert found.keys() == {("", "clean stop"), *starts}
    assert all(value > 0 for value in found.values())


@pytest.mark.process
def test_a_hot_second_has_as_many_messages_as_asked_for(tmp_path: Path) -> None:
    _, content = measured(tmp_path, 240, "hot-second", "--pending", "1500")
    section = content["sections"][0]
    assert {figure["case"]["due at once"] for figure in section["figures"]} == {1500}
    assert section["failures"] == []
    assert {"last out at broker after S", "last out at consumer after S"} <= {f["metric"] for f in section["figures"]}


def processes_of(place: Path) -> list[str]:
    """The command lines that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(place) in text:
            found.append(text)
    return found


@pytest.mark.process
def test_broken_off_it_leaves_no_process_and_no_store(tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    stores.mkdir()
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "broker.cli", "bench", "send", "--peers", "", "--seconds", "300"),
            *("--kind", "normal", "--shape", "1x1", "--flush", "ASYNC_FLUSH", "--dir", str(stores)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Whoever runs the tests in the background has SIGINT ignored, and Python leaves it so.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        happens(lambda: list(stores.glob("*/timewheel-*/store/commitlog/*")), 60)
        assert list(stores.glob("*/timewheel-*/store/commitlog/*"))
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130, output
    assert "Traceback" not in output
    assert list(stores.iterdir()) == []
    assert processes_of(stores) == []
