"""Without a Java that Spark runs on there is one line that says so, and how to get one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.lateness.engines.session import JavaMissingError, java_version, need_java
from bench.log_maker import make_log


def pretend(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "21.0.2" 2024', 21),
        ('java version "1.8.0_381"', 8),
        ('openjdk version "17" x', 17),
        ("?", None),
    ],
)
def test_versions(text: str, major: int | None) -> None:
    assert java_version(text) == major


def test_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissingError, match=r"needs Java 17 or 21; none was found: apt-get install openjdk-17-jre"):
        need_java()


def test_another_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(pretend(tmp_path, 'openjdk version "11.0.1"')))
    with pytest.raises(JavaMissingError, match="is version 11: apt-get install"):
        need_java()


def test_a_good_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(pretend(tmp_path, 'openjdk version "21.0.1"')))
    assert need_java() == 21


@pytest.mark.spark
@pytest.mark.process
def test_spark_that_does_not_start_is_one_line(tmp_path: Path) -> None:
    """Java's reason, not its stack trace, nor ours."""
    make_log(tmp_path / "store", np.zeros(3, np.int64), segment_bytes=1 << 20)
    code = "from bench.lateness.command import lateness_command; lateness_command()"
    command = [sys.executable, "-c", code, str(tmp_path / "store"), "--out", str(tmp_path / "out"), "--quiet"]
    left = {name: value for name, value in os.environ.items() if name not in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")}
    done = subprocess.run(
        [*command, "--master", "yarn"], capture_output=True, text=True, timeout=300, check=False, env=left
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    reason = "Spark does not start: When running with master 'yarn' either HADOOP_CONF_DIR"
    assert done.stderr.startswith(f"Error: --master yarn: {reason}"), done.stderr
