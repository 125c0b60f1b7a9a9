"""Archives of classes: a JVM maps those that an earlier one has read, instead of reading and linking them again.

The JVMs of clients live for seconds, and a good part of that goes to reading classes (Java calls such an archive
class-data sharing). The archive of a program is written at the end of a run of it, once, into the cache. It counts for
one Java and one class path of jars only. Where there is none, or Java does not take it, the classes are read as ever.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.cache import cached, run_tool

__all__ = ["END_SECONDS", "JAR", "archives", "compile_java", "from_archive", "recording"]

JAR = "driver.jar"
"""The classes of a driver: archives know jars, and no folders of classes."""

END_SECONDS = 120
"""What a JVM may take to write its archive on a busy machine."""


def archives(name: str, jars: Path, run: Callable[[Path], object]) -> Path:
    """Return the folder with the archives of some programs of these jars.

    ``run`` makes them the first time: it runs each program with the options of `recording`, and ends it in peace. If
    that fails there are none, with the reason beside.
    """

    def make(work: Path) -> None:
        try:
            run(work)
        except Exception as error:
            (work / "failed").write_text(f"{error}\n")

    return cached(f"classes-{name}", [str(jars), _java_release(), os.environ.get("JDK_JAVA_OPTIONS", "")], make)


def compile_java(work: Path, sources: Sequence[Path]) -> None:
    """Make a jar of a driver, with the jars in ``lib``. Raises FetchError."""
    classes = work / "classes"
    run_tool(["javac", "-nowarn", "-encoding", "UTF-8", "-cp", f"{work}/lib/*", "-d", classes, *sources], cwd=work)
    run_tool(["jar", "--create", "--file", work / JAR, "-C", classes, "."], cwd=work)


def recording(folder: Path, program: str) -> list[str]:
    """The options of a JVM that writes its archive when it ends."""
    return [f"-XX:ArchiveClassesAtExit={folder / program}.jsa"]


def from_archive(folder: Path, program: str) -> list[str]:
    """The options of a JVM that takes its classes from its archive, if there is one."""
    place = folder / f"{program}.jsa"
    return [f"-XX:SharedArchiveFile={place}"] if place.exists() else []


def _java_release() -> str:
    """Which Java it is: an archive of another one is not taken."""
    java = Path(shutil.which("java") or "java").resolve()
    release = java.parents[1] / "release"
    return f"{java} {release.read_text() if release.exists() else ''}"
