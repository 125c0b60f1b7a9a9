"""Native modules of the hot path in every wheel, where there is a compiler; else a wheel of pure Python.

What is made native stands in pyproject.toml ([tool.timewheel]); docs/decisions/0040-wheels.md says how. Everything else
about the package is in pyproject.toml. A checkout (``pip install -e``, which ``./run`` uses) is never compiled here:
``./run compile`` does that.

``TIMEWHEEL_PURE=1`` builds the wheel of pure Python, without a look at the compiler; ``TIMEWHEEL_NATIVE=1`` fails where
native modules cannot be built. ``TIMEWHEEL_MODULES`` names a few modules instead of all, for a test.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def why_pure() -> str:
    """Why native modules cannot be built; empty if they can."""
    if os.environ.get("TIMEWHEEL_PURE") == "1":
        return "TIMEWHEEL_PURE=1"
    if sys.implementation.name != "cpython":
        return f"mypyc compiles for CPython, this is {sys.implementation.name}"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python.h is missing (apt-get install python3-dev)"
    try:
        import mypyc.build  # noqa: F401 (whether it is there)
    except ImportError:
        return "mypy is not installed (pip installs it unless --no-build-isolation is given)"
    return ""


def say_pure(why: str) -> None:
    """Say in one line that the wheel is of pure Python; an error if that must not be."""
    if os.environ.get("TIMEWHEEL_NATIVE") == "1":
        raise SystemExit(f"rocketmq-timewheel: native modules were asked for, and cannot be built: {why}")
    print(f"rocketmq-timewheel: pure Python, a third slower, because {why}", file=sys.stderr)


def native_modules() -> list[Extension]:
    """The extension modules that mypyc writes. Changes the working directory's ``build`` only."""
    from mypyc.build import mypycify

    names = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["timewheel"]["compiled"]
    names = os.environ.get("TIMEWHEEL_MODULES", "").split() or names
    # Not strict: mypy's verdict on the whole project is the test suite's business.
    return mypycify(
        ["--config-file=", "--ignore-missing-imports", *names], opt_level=os.environ.get("MYPYC_OPT_LEVEL", "3")
    )


class BuildNative(build_ext):
    """Builds all native modules or none: half of them would not work with the others' sources."""

    def run(self) -> None:
        """Build; if the compiler fails, take back what is there and go on without."""
        try:
            super().run()
        except Exception as error:
            say_pure(f"the compiler failed: {' '.join(str(error).split())[:300]}")
            for output in self.get_outputs():
                Path(output).unlink(missing_ok=True)
            self.extensions = []


def extensions() -> list[Extension]:
    """The native modules of a wheel; none for any other command."""
    if "bdist_wheel" not in sys.argv:
        return []
    why = why_pure()
    if not why:
        try:
            return native_modules()
        except Exception as error:  # mypyc exits by SystemExit where a module cannot be compiled
            why = f"mypyc failed: {' '.join(str(error).split())[:300]}"
        except SystemExit as error:
            why = f"mypyc failed with {error.code}"
    say_pure(why)
    return []


class Wheel(Distribution):
    """A distribution whose wheel is for one Python exactly when it has native modules."""

    def has_ext_modules(self) -> bool:
        """Whether there are native modules."""
        return bool(self.ext_modules)


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildNative}, distclass=Wheel)
