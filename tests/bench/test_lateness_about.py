"""What a result says of its run: the command line can be given again, and holds no secret."""

from __future__ import annotations

import json

import pytest

from bench.lateness.about import about_run, command_line


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["a b", "--out", "x"], "timewheel lateness 'a b' --out x"),
        (["a", "--target", "99.9% within 10ms"], "timewheel lateness a --target '99.9% within 10ms'"),
        (["--storage", '{"key": "K", "secret": "S"}', "a"], "timewheel lateness --storage … a"),
        (["--storage={}", "a"], "timewheel lateness --storage=… a"),
        (
            ["--spark", "spark.hadoop.fs.s3a.secret.key=S"],
            "timewheel lateness --spark spark.hadoop.fs.s3a.secret.key=…",
        ),
        (["--spark=spark.hadoop.fs.s3a.access.key=S"], "timewheel lateness --spark=spark.hadoop.fs.s3a.access.key=…"),
        (["--spark", "spark.executor.cores=2"], "timewheel lateness --spark spark.executor.cores=2"),
        (["s3://user:S@host/a"], "timewheel lateness s3://…@host/a"),
        (["webhdfs://user:S@S@host:1/a@b"], "timewheel lateness webhdfs://…@host:1/a@b"),
        (["--storage"], "timewheel lateness --storage"),
        (["--storage", "--spark", "S"], "timewheel lateness --storage … S"),
    ],
)
def test_command_lines(words: list[str], shown: str) -> None:
    assert command_line(words) == shown


def test_versions_host_and_time_zone() -> None:
    about = about_run(["a"], "local")
    assert set(about) == {"command", "engine", "host", "time_zone", "versions"}
    assert "pyspark" not in about["versions"]
    assert {"Python", "numpy", "pyarrow"} <= set(about["versions"])
    assert "UTC" in about["time_zone"]
    json.dumps(about)
