"""The command line without a broker: what is called wrongly, what is missing, how errors are said."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
from rich.console import Console

from broker import cli
from broker.cli import main
from broker.cli.common import pairs
from broker.cli.demo_view import DemoView, live_view
from broker.cli.run import _until_stopped, options_to_values
from broker.cli.tally import Tally
from broker.config.broker_config import BrokerConfig
from broker.config.logs import IN_FILE_ONLY, PlaceLimit, log_directory, log_settings, start_logging
from store.disk.errors import StoreError

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """Run the command line; its exit status, standard output and standard error."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    status = ended.value.code
    assert isinstance(status, int)
    return status, out, err


def test_help_names_the_commands(capsys: Capture) -> None:
    for arguments in (["--help"], ["-h"]):
        status, out, err = run(capsys, *arguments)
        assert (status, err) == (0, "")
        for command in ("broker", "send", "consume", "check", "demo"):
            assert f"\n  {command} " in out
    for command in ("broker", "send", "consume", "check", "demo"):
        status, out, _ = run(capsys, command, "--help")
        assert status == 0
        assert out.startswith(f"Usage: timewheel {command}")


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["send", "t"], 2, "Missing argument 'BODY'"),
        (["send", "t", "b", "--in", "5x"], 2, "not a span: '5x'"),
        (["send", "t", "b", "--at", "soon"], 2, "not a time: 'soon'"),
        (["send", "t", "b", "--at", "2030-01-01", "--in", "1s"], 2, "exclude each other"),
        (["send", "t", "b", "--level", "19"], 2, "19 is not in the range"),
        (["send", "t", "b", "--property", "x"], 2, "expected name=value"),
        (["send", "t", "b", "--namesrv", "nowhere"], 2, "expected HOST:PORT, found 'nowhere'"),
        (["consume", "t", "--tags", "||"], 2, "no tag"),
        (["consume"], 2, "Missing argument"),
        (["check", "/nonexistent"], 2, "does not exist"),
        (["broker"], 1, "--store DIR"),
        (["broker", "--store", "s", "--listen", "x"], 2, "expected HOST:PORT"),
        (["broker", "--store", "s", "--namesrv-listen", "1", "--namesrv-addr", "h:1"], 2, "exclude each other"),
        (["broker", "--store", "s", "--namesrv-addr", "h"], 2, "expected HOST:PORT;HOST:PORT"),
        (["broker", "--store", "s", "--set", "x"], 2, "--set x: expected name=value"),
        (["broker", "--store", "s", "--set", "flushDiskType=NEVER"], 1, "flushDiskType=NEVER: expected"),
        (["broker", "-c", "/nonexistent.conf"], 1, "/nonexistent.conf: No such file"),
    ],
)
def test_errors_are_one_line(capsys: Capture, arguments: list[str], status: int, text: str) -> None:
    found, out, err = run(capsys, *arguments)
    assert found == status
    assert out == ""
    assert err.startswith("timewheel: ")
    assert text in err
    assert err.count("\n") == 1


def test_nobody_listens(capsys: Capture, unused_port: int) -> None:
    status, _, err = run(capsys, "send", "t", "b", "--namesrv", f"127.0.0.1:{unused_port}")
    assert status == 1
    assert err == (f"timewheel: no name server can be reached: 127.0.0.1:{unused_port}: Connection refused\n")


@pytest.fixture
def unused_port() -> int:
    from tests.support.ports import free_port

    return free_port()


def test_check_of_what_is_no_store(capsys: Capture, tmp_path: Path) -> None:
    status, _, err = run(capsys, "check", str(tmp_path))
    assert status == 1
    assert "is no store" in err
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------ commands of others


@click.command("bench")
@click.option("--fast", is_flag=True)
def foreign(fast: bool) -> None:
    """Measure something."""
    click.echo(f"fast={fast}")


not_a_command = 5


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, cli.COMMANDS_GROUP)


@pytest.fixture
def _foreign_commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "foreign_commands", sys.modules[__name__])
    entries = [
        entry("bench", "foreign_commands:foreign"),
        entry("report", "absent_module:report [spark]"),
        entry("odd", "foreign_commands:not_a_command"),
        entry("send", "absent_module:send"),
    ]
    monkeypatch.setattr(cli, "entry_points", lambda group: entries if group == cli.COMMANDS_GROUP else [])
    yield


@pytest.mark.usefixtures("_foreign_commands")
def test_commands_of_other_packages(capsys: Capture) -> None:
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert "Measure something." in out
    assert "(not installed: " in out
    assert out.count("\n  send ") == 1  # ours
    assert run(capsys, "bench", "--fast") == (0, "fast=True\n", "")
    status, out, err = run(capsys, "report", "--anything", "goes")
    assert (status, out) == (1, "")
    assert err == (
        "timewheel: timewheel report needs a package that is not installed (No module named 'absent_module'): "
        "pip install 'rocketmq-timewheel[spark]'\n"
    )
    assert "is not a click command" in run(capsys, "odd")[2]


# ------------------------------------------------------------------------------------------------ parts


def test_options_become_keys() -> None:
    values = options_to_values(Path("s"), ":1234", None, "a:1,b:2")
    assert values == {
        "storePathRootDir": "s",
        "bindAddress": "127.0.0.1",
        "listenPort": "1234",
        "namesrvAddr": "a:1;b:2",
    }
    assert options_to_values(None, None, "9876", None) == {"namesrvListen": "127.0.0.1:9876"}


def test_pairs() -> None:
    assert pairs(("a=b=c", "d="), "--set") == {"a": "b=c", "d": ""}


def test_the_log_has_files_with_rotation_and_a_terminal_for_warnings(tmp_path: Path, capsys: Capture) -> None:
    config = BrokerConfig(
        tmp_path,
        {
            "logFileBytes": "4096",
            "logFileCount": "2",
            "brokerNam": "x",
            "sendMessageThreadPoolNums": "1",
            "authenticationEnabled": "true",
        },
    )
    level = logging.getLogger().level
    stop = start_logging(config)
    log_settings(config)
    logging.getLogger("broker").error("not for the terminal", extra=IN_FILE_ONLY)
    logging.getLogger("broker").debug("not at all")
    stop()
    assert log_directory(config) == tmp_path / "logs"
    text = (tmp_path / "logs" / "broker.log").read_text()
    assert (
        " INFO broker: settings: authenticationEnabled" not in text
    )  # it has no effect, so it is not listed as a setting
    assert "have no effect here: authenticationEnabled, sendMessageThreadPoolNums" in text
    assert " WARNING broker: unknown settings (typing mistakes?): brokerNam" in text
    assert "not for the terminal" in text
    assert "not at all" not in text
    _, err = capsys.readouterr()
    assert "brokerNam" in err
    assert "authenticationEnabled=true" in err
    assert "not for the terminal" not in err
    stop = start_logging(config)
    for number in range(400):
        logging.getLogger("broker").info("line %d %s", number, "x" * 50)
    stop()
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["broker.log", "broker.log.1", "broker.log.2"]
    assert logging.getLogger().level == level


def test_a_full_disk_costs_log_lines_and_nothing_else(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "broker.log").symlink_to("/dev/full")
    stop = start_logging(BrokerConfig(tmp_path))
    for number in range(3):
        logging.getLogger("broker").warning("line %d", number)
    stop()
    assert capsys.readouterr().err.splitlines() == [f"WARNING broker: line {number}" for number in range(3)]


def test_a_client_that_does_wrong_all_the_time_does_not_fill_the_log() -> None:
    limit = PlaceLimit(burst=3, per_second=2)

    def at(second: float, line: int = 1, level: int = logging.WARNING) -> str | None:
        record = logging.LogRecord("broker", level, "file.py", line, "%s did wrong", ("somebody",), None)
        record.created = second
        return record.getMessage() if limit.filter(record) else None

    said = "somebody did wrong"
    assert [at(0.0) for _ in range(5)] == [said] * 3 + [None] * 2
    assert at(0.0, line=2) == said
    assert at(0.0, level=logging.CRITICAL) == said
    assert at(0.25) is None
    assert at(0.5) == said + " (3 lines like this one were left out before it)"
    assert at(1.0) == said
    assert [at(1.0), at(-5.0), at(-4.75), at(-4.5)] == [
        None,
        None,
        None,
        f"{said} (3 lines like this one were left out before it)",
    ]
    assert [at(99.0) for _ in range(4)] == [said] * 3 + [None]


def test_the_log_may_lie_elsewhere(tmp_path: Path) -> None:
    assert log_directory(BrokerConfig(tmp_path, {"logDir": "/var/log/timewheel"})) == Path("/var/log/timewheel")


def test_the_view_shows_what_came() -> None:
    tally = Tally()
    view = DemoView(tally, 3)
    for name, late in (("a", 0), ("b", 50), ("c", -3)):
        tally.sent(name, 1000)
        if name != "c":
            tally.came(name, 1000, 1000 + late, 1001 + late)
            view.came(1000, 1000 + late, 1001 + late)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view.draw())
    text = console.export_text()
    assert "pending" in text
    assert "+50 ms" in text
    assert "sending" in text
    console.file.close()
    assert view.line().startswith("2 of 3 came, 1 pending; at the broker p50 0 ms")
    with live_view(view):
        view.all_sent = True


class _Failing:
    failure = OSError("cannot sync")


@pytest.mark.asyncio
async def test_a_broker_that_the_disk_let_down_ends() -> None:
    with pytest.raises(StoreError, match="the broker accepts no more messages: cannot sync"):
        await _until_stopped(_Failing(), asyncio.Event())  # type: ignore[arg-type]
    stopped = asyncio.Event()
    stopped.set()
    await _until_stopped(_Failing(), stopped)  # type: ignore[arg-type]
