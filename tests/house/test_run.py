"""The start script, with a python3 that only pretends: interrupted, run twice at once, moved, on a bare machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PRETENDER = """#!/bin/sh
echo "$@" >>"$PRETEND_LOG"
case "$*" in
*ensurepip*) [ -z "${PRETEND_NO_VENV:-}" ] ;;
*version_info*) [ -z "${PRETEND_OLD:-}" ] ;;
--version) echo "Python 3.9.2" ;;
"-m venv --clear "*)
    rm -rf "$4" && mkdir -p "$4/bin" && cp "$0" "$4/bin/python"
    [ -z "${PRETEND_BROKEN_OFF:-}" ] || kill -INT $PPID
    ;;
*" -e "*)
    sleep 0.1
    printf '#!/bin/sh\\necho timewheel "$@"\\n' >"${0%/*}/timewheel" && chmod +x "${0%/*}/timewheel"
    ;;
esac
"""


class Checkout:
    """A directory with the start script and what it looks at."""

    def __init__(self, root: Path) -> None:
        self.place = root / "checkout"
        self.place.mkdir()
        for name in ("run", "requirements.lock", "pyproject.toml"):
            shutil.copy(ROOT / name, self.place / name)
        self.programs = root / "bin"
        self.programs.mkdir()
        (self.programs / "python3").write_text(PRETENDER)
        (self.programs / "python3").chmod(0o755)
        self.log = root / "log"

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        path = f"{self.programs}:{os.environ['PATH']}"
        return subprocess.Popen(
            [str(self.place / "run"), *arguments],
            env={"PATH": path, "PRETEND_LOG": str(self.log), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # Whoever runs the tests in the background has SIGINT ignored, and a shell cannot undo that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Exit status, output, errors."""
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=20)
        return process.returncode, out, err

    def calls(self, part: str) -> int:
        """How often python was called with this."""
        return sum(part in line for line in self.log.read_text().splitlines())


SET_UP = "run: setting up .venv for 'run' (once)\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_it_is_set_up_once(checkout: Checkout) -> None:
    assert checkout.run("demo", "--messages", "3") == (0, "timewheel demo --messages 3\n", SET_UP)
    assert checkout.run("broker") == (0, "timewheel broker\n", "")
    assert checkout.calls("-m venv") == checkout.calls(" -e ") == 1


def test_another_lock_file_installs_again_into_the_same_environment(checkout: Checkout) -> None:
    checkout.run("demo")
    with open(checkout.place / "requirements.lock", "a") as file:
        file.write("# changed\n")
    assert checkout.run("demo") == (0, "timewheel demo\n", SET_UP)
    assert (checkout.calls("-m venv"), checkout.calls(" -e ")) == (1, 2)


def test_an_environment_that_was_broken_off_is_made_anew(checkout: Checkout) -> None:
    status, out, _ = checkout.run("demo", PRETEND_BROKEN_OFF="1")
    assert (status, out) == (-2, "")
    assert checkout.run("demo") == (0, "timewheel demo\n", SET_UP)
    assert checkout.calls("-m venv") == 2


def test_a_checkout_that_was_moved_or_lost_its_python_is_set_up_anew(checkout: Checkout) -> None:
    checkout.run("demo")
    checkout.place = checkout.place.rename(checkout.place.with_name("moved here"))
    assert checkout.run("demo") == (0, "timewheel demo\n", SET_UP)
    (checkout.place / ".venv" / "bin" / "python").unlink()
    assert checkout.run("demo") == (0, "timewheel demo\n", SET_UP)
    assert checkout.run("demo") == (0, "timewheel demo\n", "")


def test_twice_at_once(checkout: Checkout) -> None:
    both = [checkout.start("demo") for _ in range(2)]
    texts = [process.communicate(timeout=20) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert {out for out, _ in texts} == {"timewheel demo\n"}
    assert sorted(err for _, err in texts) == ["", SET_UP]
    assert checkout.calls(" -e ") == 1


def test_what_is_missing_is_said_in_one_line(checkout: Checkout) -> None:
    missing = checkout.run("demo", PRETEND_NO_VENV="1")
    assert missing == (2, "", "run: Python's venv module is missing: apt-get install python3-venv\n")
    old = checkout.run("demo", PRETEND_OLD="1")
    assert old == (2, "", "run: Python 3.11 or later is needed, this is Python 3.9.2\n")
