"""What a report says of a broker that withholds, of an outage, of a log that was copied without its delay store."""

from __future__ import annotations

import doctest
import importlib.util
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bench.figures.text
from bench.lateness.counting.buckets import EXACT_MS, lateness_class
from bench.lateness.results.result import QUANTILES, Lateness, percentiles, share_within
from bench.lateness.results.target import DEFAULT_TARGET, parse_target
from bench.report.pieces.verdict import headline
from remoting.messages.message import Message as Record
from tests.bench.report_world import AS_OF_MS, Message, result_of
from tests.support.lateness_world import HOST, HOST_V6, START_MS, Log, class_of, make_world, write_world


def test_the_examples_run() -> None:
    names: tuple[str, ...] = ("counting.buckets", "checking", "reading_progress", "summary")
    names += tuple(f"results.{name}" for name in ("receipts", "result", "target"))
    for name in names:
        module = importlib.import_module(f"bench.lateness.{name}") if name != "summary" or HAS_ARROW else None
        assert module is None or doctest.testmod(module).failed == 0
    assert doctest.testmod(bench.figures.text).failed == 0


HAS_ARROW = importlib.util.find_spec("pyarrow") is not None
LATE = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-20_000, 20_000_000)


@given(st.lists(st.tuples(LATE, st.booleans()), max_size=30))
def test_a_class_keeps_three_digits_and_says_at_most_or_at_least(rows: list[tuple[int, bool]]) -> None:
    values = np.array([late for late, _ in rows], np.int64)
    waiting = np.array([waits for _, waits in rows], np.bool_)
    for (late, waits), found in zip(rows, lateness_class(values, waiting).tolist(), strict=True):
        if abs(late) < EXACT_MS:
            assert found == late
            continue
        assert found == max(-(2**63) + 1, min(class_of(late, waits), 2**63 - 1))
        assert abs(found - late) * 100 < abs(late)
        assert found <= late if waits and late > 0 else abs(found) >= abs(late)


def test_the_classes_of_any_lateness_are_few() -> None:
    hours = np.arange(0, 10_800_000, dtype=np.int64)
    assert len(np.unique(lateness_class(hours, np.zeros(len(hours), np.bool_)))) < EXACT_MS + 3_000


ROWS = st.lists(st.tuples(st.integers(-5, 5_000), st.integers(1, 40)), max_size=20)


@given(ROWS, ROWS)
def test_what_waits_counts_as_late_as_it_is_so_far(came: list[tuple[int, int]], waits: list[tuple[int, int]]) -> None:
    delivered = [value for value, count in came for _ in range(count)]
    waiting = [value for value, count in waits for _ in range(count)]
    columns = [[row[place] for row in rows] for rows in (came, waits) for place in (0, 1)]
    found = Lateness(*columns).figures()
    every = sorted(delivered + waiting)
    assert found["percentiles"] == percentiles(every, [1] * len(every))
    never = percentiles(delivered + [10**9] * len(waiting), [1] * len(every))
    for name in (*QUANTILES, "max"):
        # A lower bound, and marked as one, exactly where the future of those that wait can change it.
        assert (name in found["at_least"]) == (never[name] != found["percentiles"][name])
    for limit, share in found["within"].items():
        made, missed = sum(v <= int(limit) for v in delivered), sum(v > int(limit) for v in waiting)
        assert share == (made / (len(delivered) + missed) if len(delivered) + missed else None)


def test_a_stopped_broker_does_not_pass_for_a_quick_one() -> None:
    late = Lateness([3], [9_400], [3_000_000], [600], latest_ms=7, waited_ms=3_599_123).figures()
    assert late["percentiles"]["p99"] == 3_000_000
    assert late["percentiles"]["max"] == 3_599_123
    assert late["at_least"] == ["p99", "p99.9", "p99.99", "max"]
    assert share_within([3], [9_400], [10], ([3_000_000], [600])) == {"10": 0.94}


def test_a_rounded_class_is_never_later_than_the_exact_maximum() -> None:
    figures = Lateness([12_399], [5], latest_ms=12_345).figures()
    assert set(figures["percentiles"].values()) == {12_345}


@pytest.mark.parametrize(
    ("text", "share", "limit_ms"), [("99.9% within 10ms", 0.999, 10), ("100 % within 1.5s", 1.0, 1_500)]
)
def test_a_target_is_read(text: str, share: float, limit_ms: int) -> None:
    target = parse_target(text)
    assert (target.share, target.limit_ms) == (share, limit_ms)


@pytest.mark.parametrize("text", ["99.9% < 10ms", "0% within 3s", "101% within 3s", "99% within 10"])
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(ValueError, match=r"as in '99\.9% within 10ms'"):
        parse_target(text)


@pytest.mark.parametrize(
    ("late", "kind"), [(3, "verdict"), (1_000, "verdict"), (1_001, "verdict bad"), (3_565_000, "verdict bad")]
)
def test_the_verdict_is_coloured_by_its_target(late: int, kind: str) -> None:
    messages = [Message("timewheel", AS_OF_MS - 7_200_000, late, times=1_000)]
    text = str(headline(result_of(["timewheel"], messages, target=DEFAULT_TARGET).summary))
    assert f'class="{kind}"' in text
    if late > 60_000:
        assert "99 of 100 at most 59 min late" in text


@pytest.mark.spark
def test_the_moment_of_a_reading_is_fixed_before_anything_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.lateness import pipeline
    from bench.lateness.engines import job as jobs

    looked: list[str] = []

    class Clock:
        @staticmethod
        def time_ns() -> int:
            looked.append("clock")
            return START_MS * 1_000_000

    def files(*_: object) -> list[Any]:
        looked.append("delay store")
        return []

    def log(*_: object) -> Any:
        looked.append("log")
        raise StopIteration

    monkeypatch.setattr(jobs, "time", Clock)
    monkeypatch.setattr(jobs, "plan_spill", files)
    monkeypatch.setattr(jobs, "plan_log", log)
    rng = random.Random(1)
    write_world(make_world(rng, 9), tmp_path / "store", rng)
    (tmp_path / "store" / "timewheel").mkdir(exist_ok=True)
    job = pipeline.Job(pipeline.find_sources([str(tmp_path / "store")]), tmp_path / "out")
    with pytest.raises(StopIteration):
        pipeline.run_job(None, job, lambda _: None)  # type: ignore[arg-type]
    assert looked == ["clock", "delay store", "log"]
    assert job.as_of_ms == START_MS


def ours(folder: Path, *, marks: bool) -> None:
    log = Log(folder, 1 << 14)
    for number in range(200):
        text = f"UNIQ_KEY\x01{number:032X}\x02"
        if marks and number % 2:
            text += f"DELAY\x011\x02__TW_LEVEL\x011:{number}\x02"
        body = b"\x02__TW_ID\x01ff\x02"  # a body may hold anything
        log.append(Record("Orders", body=body, properties=text), START_MS + number, (HOST, HOST_V6)[number % 2])
    log.close()


def test_a_copied_log_of_ours_is_told_by_its_records(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from bench.lateness.logs.sources import find_sources

    ours(tmp_path / "copied", marks=True)
    ours(tmp_path / "plain", marks=False)
    (tmp_path / "whole" / "timewheel").mkdir(parents=True)
    ours(tmp_path / "whole", marks=False)
    (tmp_path / "whole" / "config").mkdir()
    (tmp_path / "whole" / "config" / "delayOffset.json").write_text("{}")
    (tmp_path / "bare").mkdir()
    shutil.copytree(tmp_path / "copied" / "commitlog", tmp_path / "bare" / "segments")
    paths = [tmp_path / "copied", tmp_path / "plain", tmp_path / "whole", tmp_path / "bare" / "segments"]
    copied, plain, whole, bare = find_sources([str(path) for path in paths])
    assert [source.kind for source in (copied, plain, whole, bare)] == ["timewheel", "apache", "timewheel", "timewheel"]
    assert "not counted" in copied.not_known[0]
    assert "delayOffset.json" in copied.not_known[1]
    assert whole.not_known == ()
    assert copied.not_known == bare.not_known


def test_the_brokers_addresses_are_read_from_the_records(tmp_path: Path) -> None:
    from bench.lateness.logs.records import LogSegment, SplitReader, store_hosts

    ours(tmp_path, marks=False)
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    segment = LogSegment(str(path), 0, len(data), len(data.rstrip(b"\0")), True)
    reader = SplitReader(lambda at, count: data[at : at + count], segment, 0, segment.end)
    assert set().union(*(store_hosts(chunk, heads) for chunk, heads in reader.chunks())) == {HOST, HOST_V6}


def test_a_damaged_manifest_with_a_whole_copy(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from bench.lateness.logs.spill_files import plan_spill
    from bench.lateness.logs.storage import storage_for
    from store.disk.errors import StoreCorruptError
    from store.spill.rows.manifest import Manifest

    folder = tmp_path / "store" / "timewheel" / "delay"
    folder.mkdir(parents=True)
    manifest = Manifest(b"s" * 16)
    (folder / "manifest").write_bytes(manifest.encode())
    whole = manifest.encode()
    (folder / "manifest").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    storage = storage_for(str(tmp_path))
    with pytest.raises(StoreCorruptError, match="manifest at 0"):
        plan_spill(str(tmp_path / "store"), storage)
    (folder / "manifest.copy").write_bytes(whole)
    assert plan_spill(str(tmp_path / "store"), storage) == []


@contextmanager
def no_spark(*_: object, **__: object) -> Iterator[None]:
    raise AssertionError("the command came as far as Spark")
    yield


@pytest.mark.spark
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--memory", "64m"], 2, "--memory 64m: Spark needs at least 512m"),
        (["--memory", "lots"], 2, "--memory lots: a number with m or g is expected, such as 2g"),
        (["--master", "sc://host"], 2, "--master sc://host: Spark Connect is not supported"),
        (["--master", "moon"], 2, "--master moon: local[N], spark://HOST:PORT, yarn or k8s://"),
        (["--since", "yesterday"], 2, "not a time: 'yesterday'; expected an ISO 8601 time"),
        (["--until", "1700000000"], 2, "1700000000 is too short for epoch milliseconds"),
        (["--since", "2030-01-01", "--until", "2029-01-01"], 2, "--since must lie before --until"),
        (["--target", "soon"], 2, "as in '99.9% within 10ms'"),
    ],
)
def test_one_clear_line_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, said: str
) -> None:
    from click.testing import CliRunner

    from bench.lateness import command

    monkeypatch.setattr(command, "spark_session", no_spark)
    ours(tmp_path / "store", marks=False)
    found = CliRunner().invoke(
        command.lateness_command, [str(tmp_path / "store"), "--out", str(tmp_path / "out"), *arguments]
    )
    assert (found.exit_code, said in found.output.replace("\n", " ")) == (status, True), found.output


@pytest.mark.spark
def test_a_result_folder_that_cannot_be_used_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from bench.lateness import command

    monkeypatch.setattr(command, "spark_session", no_spark)
    ours(tmp_path / "store", marks=False)
    strange = tmp_path / "out" / "histograms"
    strange.mkdir(parents=True)
    (strange / "holiday.jpg").write_bytes(b"!")
    found = CliRunner().invoke(command.lateness_command, [str(tmp_path / "store"), "--out", str(tmp_path / "out")])
    assert found.exit_code == 2
    assert "'holiday.jpg', which is no result of this command" in found.output
    assert (strange / "holiday.jpg").exists()
    (tmp_path / "file").write_text("")
    found = CliRunner().invoke(
        command.lateness_command, [str(tmp_path / "store"), "--out", str(tmp_path / "file" / "x")]
    )
    assert found.exit_code == 2
    text = f"Error: --out {tmp_path / 'file' / 'x'}: nothing can be written there (Not a directory)"
    assert text in found.output


COPIED = (
    "TAGS\x01__TW_DUE\x02",
    "__TW_DUE\x01soon\x02",
    "__TW_LEVEL\x01none\x02",
    "__TW_ID\x01ab\x02__TW_DUE\x011700000000000\x02",
)
"""What senders to Apache's broker may have written: the last one sends a message again that came from ours."""


def test_marks_that_a_sender_has_copied_make_no_delivery_of_ours(tmp_path: Path) -> None:
    """In a log of Apache's, timer and level messages: otherwise their deliveries would be missing, and they overdue."""
    pytest.importorskip("pyspark")
    from bench.lateness.engines.local_engine import LocalEngine
    from bench.lateness.pipeline import Job, find_sources, run_job

    log = Log(tmp_path / "store", 1 << 14)
    for number, copied in enumerate((*COPIED, "")):
        due_ms = START_MS + 5_000 + number
        for kind, late_ms in (
            (f"TIMER_DELIVER_MS\x01{due_ms}\x02TIMER_OUT_MS\x01{due_ms}\x02", 7),
            ("DELAY\x011\x02", 9),
        ):
            text = f"{copied}UNIQ_KEY\x01{number}{late_ms}\x02{kind}REAL_TOPIC\x01Orders\x02REAL_QID\x010\x02"
            topic, sent_ms = (
                ("rmq_sys_wheel_timer", START_MS) if late_ms == 7 else ("SCHEDULE_TOPIC_XXXX", due_ms - 1_000)
            )
            log.append(Record(topic, 0, born_ms=START_MS, properties=text), sent_ms)
            log.append(Record("Orders", 0, born_ms=START_MS, properties=text), due_ms + late_ms)
    log.close()
    sources = find_sources([str(tmp_path / "store")])
    assert sources[0].kind == "apache"
    total = run_job(LocalEngine(1), Job(sources, tmp_path / "out", as_of_ms=START_MS + 60_000), lambda _: None)["total"]
    assert (total["sent"], total["delivered"], total["overdue"], total["early"]) == (10, 10, 0, 0)
    assert (total["percentiles"]["p50"], total["percentiles"]["max"]) == (7, 9)
