"""The part of a result about its run: command line, versions, host, time zone. It contains no secret.

Values of options that may be secret are left out, so that a report can be passed on.
"""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bench.lateness.logs.storage import HIDDEN, without_login

__all__ = ["about_run", "command_line"]

_SECRET = re.compile(r"secret|passw|token|credential|key", re.IGNORECASE)
_PACKAGES = {"timewheel": "rocketmq-timewheel", "numpy": "numpy", "pyarrow": "pyarrow", "pyspark": "pyspark"}


def command_line(arguments: Sequence[str]) -> str:
    """The command line, without values that may be secret.

    >>> command_line(["s3://me:pass@logs/a", "--storage", '{"secret": 1}', "--spark=fs.s3a.secret.key=x", "--quiet"])
    'timewheel lateness s3://…@logs/a --storage … --spark=fs.s3a.secret.key=… --quiet'
    """
    words: list[str] = []
    hides = ""
    for argument in arguments:
        word = without_login(argument)
        name, equals, value = word.partition("=")
        if hides:
            word = _without(hides, word)
        elif equals and name in ("--storage", "--spark"):
            word = f"{name}={_without(name, value)}"
        hides = argument if not hides and argument in ("--storage", "--spark") else ""
        words.append(word if HIDDEN in word and " " not in word else shlex.quote(word))
    return " ".join(["timewheel", "lateness", *words])


def _without(option: str, value: str) -> str:
    if option == "--storage":
        return HIDDEN
    key, equals, _ = value.partition("=")
    return f"{key}{equals}{HIDDEN}" if _SECRET.search(key) or not equals else value


def about_run(arguments: Sequence[str], engine: str) -> dict[str, Any]:
    """Return ``command``, ``engine``, ``host``, ``time_zone`` and ``versions``, as ``summary.json`` has them."""
    now = datetime.now().astimezone()
    versions = {"Python": platform.python_version()}
    for name, package in _PACKAGES.items():
        if name == "pyspark" and engine != "spark":
            continue
        try:
            versions[name] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "command": command_line(arguments),
        "engine": engine,
        "host": f"{platform.node()} ({platform.system()} {platform.machine()})",
        "time_zone": f"{now.tzname()} (UTC{now:%z})",
        "versions": versions,
    }
