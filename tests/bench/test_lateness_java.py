"""Without a Java that Spark runs on there is one line that says so, and how to get one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.lateness.engines.session import JavaMissingError, java_version, need_java


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
