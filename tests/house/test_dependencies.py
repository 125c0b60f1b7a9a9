"""Dependencies: what pyproject.toml asks for is imported somewhere, and what is imported is asked for."""

from __future__ import annotations

import functools
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.house.test_architecture import PACKAGES, ROOT, imports, sources

OTHER_NAMES = {
    "pytest-asyncio": "pytest_asyncio",
    "pytest-xdist": "xdist",
    "flask-cors": "flask_cors",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "prometheus-client": "prometheus_client",
    "pyyaml": "yaml",
}
"""Distributions whose module has another name than they."""

BROUGHT_BY = {"boto3": "moto"}
"""Modules that come with another distribution by its own promise."""

NOT_IMPORTED = {
    "flask": "what moto needs to be a server of its own",
    "flask-cors": "what moto needs to be a server of its own",
    "mypy": "a command",
    "pandas": "PySpark imports it",
    "pytest-asyncio": "a plug-in of pytest",
    "pytest-xdist": "a plug-in of pytest",
    "ruff": "a command",
    "s3fs": "fsspec imports it for s3://",
    "setuptools": "mypyc builds with it",
    "types-aiofiles": "types, for mypy",
}
"""What is needed without an import of ours, and why."""


def _distribution(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found, requirement
    return found.group().lower()


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE = {_distribution(text) for text in PROJECT["dependencies"]}
EXTRAS = {name: {_distribution(text) for text in texts} for name, texts in PROJECT["optional-dependencies"].items()}


@functools.cache
def _imported(*tops: str) -> set[str]:
    paths: list[Path] = [path for top in tops for path in sources(top)]
    found = {module.partition(".")[0] for path in paths for _, module in imports(path)}
    return {BROUGHT_BY.get(name, name) for name in found} - set(sys.stdlib_module_names) - {*PACKAGES, "tests"}


def _module(distribution: str) -> str:
    return OTHER_NAMES.get(distribution, distribution)


@pytest.mark.parametrize("distribution", sorted(BASE))
def test_a_dependency_is_imported_at_run_time(distribution: str) -> None:
    """By a package that is installed for every user; what only the benchmark imports belongs to its extra."""
    assert _module(distribution) in _imported(*(name for name in PACKAGES if name != "bench"))


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_what_an_extra_brings_is_imported(extra: str) -> None:
    wanted = {_module(name) for name in EXTRAS[extra] - set(NOT_IMPORTED)}
    assert not wanted - _imported(*PACKAGES, "tests")


def test_what_is_imported_is_asked_for() -> None:
    asked = {_module(name) for names in (BASE, *EXTRAS.values()) for name in names}
    assert not _imported(*PACKAGES, "tests") - asked


def test_exceptions_are_still_asked_for() -> None:
    assert not set(NOT_IMPORTED) - BASE.union(*EXTRAS.values())
