"""Turns, shares of a load, what is left out, and what makes the command fail; nothing is started here."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from click.testing import CliRunner

from bench.cli import bench
from bench.fetching.cache import MissingToolError
from bench.figures.results import Section, SystemNote, document, write
from bench.generator.arrivals import Arrivals
from bench.generator.load import Load, LoadResult
from bench.peers.catalogue import OURS, PEERS
from bench.peers.system import Running, Setup, System
from bench.running.machine import PageCache, memory_limits
from bench.running.session import WARM_NUMBERS_A_TURN, Session, merged, shares
from bench.running.warmth import LOOK_BACK, MOST_SECONDS, RISE, TURN_SECONDS, is_warm, warm_up
from bench.workloads import lateness
from bench.workloads.catalogue import WORKLOADS
from bench.workloads.lateness import LatenessCase, count_losses
from bench.workloads.send import BATCH, SHAPES


def nothing(_folder: Path, _setup: Setup) -> Running:
    raise NotImplementedError


def system(name: str, missing: str = "") -> System:
    def need() -> None:
        if missing:
            raise MissingToolError(missing)

    return System(name, name.title(), lambda: "1.2", "rocketmq", nothing, need)


def test_the_page_cache_is_filled_before_each_start(tmp_path: Path) -> None:
    told: list[str] = []

    class Told(PageCache):
        def fill(self) -> int:
            told.append("fill")
            return super().fill()

    class Fake(Running):
        configuration: ClassVar[dict[str, str]] = {}

        def start(self) -> None:
            told.append("start")

        def kill(self) -> None:
            told.append("kill")

    fake = System("fake", "Fake", lambda: "1", "rocketmq", lambda _folder, _setup: Fake())
    session = Session(folder=tmp_path, systems=[], page_cache=Told(tmp_path, 1 << 60))
    session.notes["fake"] = SystemNote("fake", "Fake")
    for _ in range(2):
        with session.running(fake):
            pass
    assert told == ["fill", "start", "kill"] * 2


def test_filling_the_page_cache_ends_with_little_free_and_reads_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [900 << 20, 600 << 20, 200 << 20, 900 << 20, 50 << 20]
    known = {"MemTotal": 1 << 30}
    monkeypatch.setattr("bench.running.machine._meminfo_bytes", lambda name: known.get(name) or free.pop(0))
    cache = PageCache(tmp_path, 300 << 20)
    assert [cache.fill(), cache.fill()] == [128 << 20, 64 << 20]
    assert not free
    assert cache._at == 192 << 20


def test_a_page_that_is_touched_costs_something() -> None:
    limits = memory_limits(8 << 20)
    assert 0 < limits["memory_touch_us"] <= limits["memory_touch_p90_us"]


def test_systems_take_turns_in_each_repeat(tmp_path: Path) -> None:
    session = Session(tmp_path, [], repeats=4)
    systems = [system("a"), system("b"), system("c")]
    order = [(repeat, one.name) for repeat, one in session.turns(systems, "x")]
    places = ["".join(name for number, name in order if number == repeat) for repeat in range(4)]
    assert places == ["abc", "bca", "cab", "abc"]  # who comes first in a turn would be compared by its place
    assert list(session.turns([], "x")) == []


def test_what_cannot_be_had_is_left_out_with_one_line(tmp_path: Path) -> None:
    session = Session(tmp_path, [])
    here, gone = system("here"), system("gone", "gone not found:\n apt install gone")
    assert session.available([here, gone]) == [here]
    assert session.notes["here"].version == "1.2"
    assert session.notes["gone"].left_out == "gone not found: apt install gone"


APACHE_FROM_ITS_START = [3.3, 7.2, 6.2, 6.7, 9.2, 12.4, 14.4, 17.1, 17.4, 17.7, 21.5, 23.9, 22.5, 30.2]
"""Thousand timed sends a second in turns of 5 s, as measured; it was not warm at the end."""


def test_a_broker_that_gets_faster_is_not_warm() -> None:
    assert not any(is_warm(APACHE_FROM_ITS_START[:turns], 1) for turns in range(LOOK_BACK + 4, 15))
    levelled = [*APACHE_FROM_ITS_START, *[30.2 * RISE] * LOOK_BACK]
    assert is_warm(levelled, 12)
    assert not is_warm(levelled, len(levelled) + 1)


@pytest.mark.parametrize(
    ("rates", "seconds_min", "turns", "settled"),
    [
        ([10.0] * 99, 60.0, 12, True),
        ([10.0] * 99, 0.0, LOOK_BACK + 1, True),
        ([float(n * n) for n in range(1, 99)], 60.0, int(MOST_SECONDS / TURN_SECONDS), False),
        ([1.0] * 20 + [float(n) for n in range(2, 99)], 60.0, 12, True),
    ],
)
def test_a_system_is_warmed_until_its_rate_no_longer_rises(
    rates: list[float], seconds_min: float, turns: int, settled: bool
) -> None:
    given = iter(rates)
    warmth = warm_up(lambda _seconds: next(given), seconds_min)
    assert (len(warmth.rates), warmth.settled) == (turns, settled)
    assert warmth.seconds == turns * TURN_SECONDS
    assert ("still rising" in warmth.text()) == (not settled)


def warmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: System, **choice: object
) -> tuple[list[Load], Section]:
    loads: list[Load] = []

    def generate(_session: Session, load: Load) -> LoadResult:
        loads.append(load)
        return LoadResult(1, 1, 0, load.seconds, 5_000.0, 0.1, 0.9, 1.0, 1.0)

    monkeypatch.setattr(Session, "generate", generate)
    session, section = Session(tmp_path, [], **choice), Section("send", "Sends")  # type: ignore[arg-type]
    session.warm(one, Load(port=1, first_number=7), section)
    return loads, section


def test_java_is_warmed_for_a_minute_at_least_and_the_result_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, section = warmed(tmp_path, monkeypatch, PEERS["apache"])
    assert sum(load.seconds for load in loads) == 60
    assert [load.first_number for load in loads[:2]] == [7, 7 + WARM_NUMBERS_A_TURN]
    assert section.notes == [
        "Apache RocketMQ: " + "warmed for 60 s: " + ", ".join("5" * 12) + " thousand a second in turns of 5 s"
    ]


def test_the_length_of_the_warm_up_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [load.seconds for load in warmed(tmp_path, monkeypatch, OURS, warm_up_seconds=10.0)[0]] == [5, 5]
    assert [load.seconds for load in warmed(tmp_path, monkeypatch, OURS, warm_up_seconds=2.0)[0]] == [2]
    loads, section = warmed(tmp_path, monkeypatch, PEERS["apache"], quick=True)
    assert ([load.seconds for load in loads], section.notes) == ([1.5], [])


def test_a_fair_run_is_long_unless_it_is_quick() -> None:
    fair = Session(Path(), [])
    assert (fair.repeats, fair.seconds, fair.sustain_seconds) == (5, 30.0, 600.0)


@pytest.mark.parametrize(("rate", "quick", "held"), [(None, False, 20_000), (None, True, 2_000), (500, False, 500)])
def test_the_rate_that_is_held_can_be_chosen(
    rate: int | None, quick: bool, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases: list[LatenessCase] = []
    monkeypatch.setattr(lateness, "_measure", lambda *given: cases.append(given[3]))
    lateness.sustained(Session(Path(), [OURS], quick, repeats=2, sustain_rate=rate))
    assert cases == [LatenessCase("timed", held)] * 2


def test_shares_make_up_the_load_and_never_the_same_number() -> None:
    parts = shares(Load(port=1, connections=5, rate=100, first_number=7), 2)
    assert [part.connections for part in parts] == [3, 2]
    assert sum(part.rate for part in parts) == 100
    assert len({part.first_number for part in parts}) == 2


def test_the_slowest_share_speaks_for_all() -> None:
    fast = LoadResult(10, 10, 0, 1.0, 10.0, 0.2, 0.8, 50.0, 90.0, first_accepted_ms=5)
    slow = LoadResult(10, 8, 2, 2.0, 4.0, 0.9, 0.0, 70.0, 95.0, first_accepted_ms=9, refusal="busy")
    both = merged([fast, slow])
    assert (both.sent, both.accepted, both.refused, both.per_second) == (20, 18, 2, 14.0)
    assert (both.generator_cpu, both.waited, both.reply_p50_us) == (0.9, 0.0, 70.0)
    assert (both.first_accepted_ms, both.refusal) == (5, "busy")


@pytest.mark.parametrize(
    ("rows", "accepted", "failures"),
    [
        ([(1, 1000, 1000, 1500), (2, 1000, 2000, 2500)], 2, 0),
        ([(1, 1000, 1000, 1500)], 2, 1),
        ([(1, 2_000_000, 1_999_000, 2_000_500)], 1, 1),
        ([(1, 1000, 1000, 1500), (1, 1000, 2000, 2500)], 1, 0),
    ],
)
def test_lost_and_early_messages_of_ours_fail_the_command(
    rows: list[tuple[int, ...]], accepted: int, failures: int
) -> None:
    verdict = Arrivals(np.array(rows, np.int64)).judge()
    for one, expected in ((OURS, failures), (PEERS["apache"], 0)):
        section = Section("lateness", "Lateness")
        count_losses(section, one, {"kind": "timed"}, verdict, accepted)
        assert len(section.failures) == expected


def test_list_names_every_workload_and_system() -> None:
    shown = CliRunner().invoke(bench, ["--list"])
    assert shown.exit_code == 0
    for name in (*WORKLOADS, *PEERS, "timewheel"):
        assert name in shown.output


def test_markdown_of_a_result_without_measuring(tmp_path: Path) -> None:
    section = Section("send", "Sends")
    section.add("timewheel", {"shape": "1x1"}, "accepted", "1/s", "higher", 12_000.0)
    machine = {"cpu": "A", "cores": 2, "memory_bytes": 1, "filesystem": "ext4", "kernel": "L", "python": "3"}
    path = write(document("x", True, machine, [], [section]), tmp_path)
    shown = CliRunner().invoke(bench, ["--markdown", str(path)])
    assert shown.exit_code == 0
    assert "| 1x1 | accepted [1/s] | 12,000 |" in shown.output
    path.write_text("{}")
    assert CliRunner().invoke(bench, ["--markdown", str(path)]).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["send", "--peers", "kafka"], "known are apache, nats"),
        (["send", "--body", "8"], "at least 16 bytes"),
        (["everything"], "'everything' is not one of"),
        ([], "Missing argument"),
    ],
)
def test_wrong_calls_say_what_is_right(arguments: list[str], complaint: str) -> None:
    shown = CliRunner().invoke(bench, arguments)
    assert shown.exit_code == 2
    assert complaint in shown.output


def test_shapes_are_named_for_what_they_are() -> None:
    for name, (connections, in_flight, batch) in SHAPES.items():
        assert name == (BATCH if batch > 1 else f"{connections}x{in_flight}")
