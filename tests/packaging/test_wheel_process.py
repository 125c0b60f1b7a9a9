"""Wheels: native modules where there is a compiler, pure Python where there is none, and a broker that runs from one.

A whole compiled build takes minutes (`./run wheels`, `./run compile`); here a few modules stand for all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.cache import FetchError, MissingToolError, need_tools
from tests.support.need import need
from tests.support.ports import free_port, free_ports_around
from tests.support.processes import Child
from tests.support.wait import wait_until

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "bench",
    "broker",
    "broker_plugin",
    "http_door",
    "remoting",
    "service",
    "store",
    "timewheel",
    "timewheel_client",
)
PLAIN = "remoting/messages/keys.py"
FEW = f"{PLAIN} remoting/messages/record.py store/spill/rows/format.py"
"""The last of them has NumPy's types, which mypyc must be able to read, and takes long to."""
SECONDS = 60
NO_BYTE_CODE = {"PIP_COMPILE": "0"}
"""Of all that is installed for a build or a run, little is ever imported."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is made of."""
    place = tmp_path_factory.mktemp("source")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place / name)
    return place


def build(source: Path, out: Path, empty: Path | None = None, **environment: str) -> tuple[Path, str]:
    """Build a wheel with this environment's tools, so that nothing is fetched; return it, and what was said.

    ``empty``: by the Python of this empty environment, as pip does it for a user: with what the package says that its
    build needs, and nothing else.
    """
    shutil.rmtree(source / "build", ignore_errors=True)
    python = [sys.executable] if empty is None else [empty / "bin" / "python"]
    command = [*python, "-m", "pip", "wheel", "-v", "--no-deps", "-w", out, source]
    command += ["--no-build-isolation"] if empty is None else []
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TIMEWHEEL_")} | NO_BYTE_CODE
    done = subprocess.run(
        list(map(str, command)),
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = out.glob("*.whl")
    return wheel, done.stdout + done.stderr


def can_compile() -> None:
    need_tools("gcc")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise MissingToolError("Python.h is missing: apt-get install python3-dev")


def fetched(command: list[str | Path]) -> None:
    """Run pip, which fetches what the package depends on."""
    environment = {**os.environ, **NO_BYTE_CODE}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FetchError(f"pip could not install the wheel and what it needs: {' '.join(done.stderr.split())[-400:]}")


def natives(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "broker/cli/run.py" in names
    assert "bench/report/pieces/page.css" in names
    return [name for name in names if name.endswith(".so")]


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"TIMEWHEEL_PURE": "1"}, "TIMEWHEEL_PURE=1"),
        ({"CC": "no-such-compiler -O2"}, "there is no C compiler (no-such-compiler)"),
    ],
    ids=["asked for", "no compiler"],
)
def test_without_a_compiler_the_wheel_is_pure_and_says_so(
    source: Path, tmp_path: Path, environment: dict[str, str], why: str
) -> None:
    wheel, said = build(source, tmp_path, **environment)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert natives(wheel) == []
    lines = [line.strip() for line in said.splitlines() if "pure Python" in line]
    assert lines
    assert set(lines) == {f"rocketmq-timewheel: pure Python, a third slower, because {why}"}


def test_a_compiler_that_fails_leaves_no_half_of_the_native_modules(source: Path, tmp_path: Path) -> None:
    wheel, said = build(source, tmp_path, CC="false", TIMEWHEEL_MODULES=PLAIN)
    assert natives(wheel) == []
    assert "pure Python, a third slower, because the compiler failed" in said


def test_a_source_distribution_has_all_that_a_wheel_is_made_of(source: Path, tmp_path: Path) -> None:
    wanted = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    of_builds = ("build/", "rocketmq_timewheel.egg-info/", ".mypy_cache/")  # other tests build from this folder
    copy = shutil.copytree(source, tmp_path / "copy")
    line = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", line, str(tmp_path)], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        found = {name.partition("/")[2] for name in opened.getnames()}
    missing = {name for name in wanted - found if not name.startswith(of_builds)}
    assert missing == set()


def test_a_wheel_runs_in_an_empty_environment(source: Path, tmp_path: Path) -> None:
    need(can_compile)
    place = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    needs = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    need(
        lambda: fetched([place / "bin" / "python", "-m", "pip", "download", "-q", "--no-deps", "-d", tmp_path, *needs])
    )
    wheel, said = build(source, tmp_path / "wheel", place, TIMEWHEEL_MODULES=FEW, MYPYC_OPT_LEVEL="0")
    assert "pure Python" not in said, said[-3000:]
    assert len(natives(wheel)) == 4, "three modules, and what they share"
    install = [place / "bin" / "python", "-m", "pip", "install", "-q", "-c", ROOT / "requirements.lock", wheel]
    need(lambda: fetched(install))

    def run(*words: str) -> str:
        command = [str(place / "bin" / "timewheel"), *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "(compiled)" in run("--version")
    broker, names = f"127.0.0.1:{free_ports_around(-2, 8, 10)}", f"127.0.0.1:{free_port()}"
    line = ["broker", "--store", tmp_path / "store", "--listen", broker, "--namesrv-listen", names, "--shards", "2"]
    child = Child([place / "bin" / "timewheel", *line], tmp_path, tmp_path / "log")
    try:
        wait_until(lambda: "ready: 2 shards" in child.log.read_text(), SECONDS, "the broker is ready")
        run("send", "OrderTimeout", "order-4711", "--in", "1s", "--namesrv", names)
        assert "order-4711" in run("consume", "OrderTimeout", "--namesrv", names, "--count", "1", "--from", "first")
        assert child.terminate() == 0
    finally:
        child.kill()
    assert "nothing is wrong" in run("check", str(tmp_path / "store"))
