"""The limit of open files: raised as far as it may be, and said so."""

import logging
import resource

import pytest

from broker import open_files


class Limits:
    """Stands for the process's limit."""

    def __init__(self, soft: int, hard: int, refuse: bool = False) -> None:
        self.now = (soft, hard)
        self.refuse = refuse

    def getrlimit(self, _what: int) -> tuple[int, int]:
        return self.now

    def setrlimit(self, _what: int, now: tuple[int, int]) -> None:
        if self.refuse:
            raise ValueError("not allowed to raise maximum limit")
        self.now = now


@pytest.fixture
def limits(monkeypatch):
    def make(*given, **more):
        made = Limits(*given, **more)
        monkeypatch.setattr(resource, "getrlimit", made.getrlimit)
        monkeypatch.setattr(resource, "setrlimit", made.setrlimit)
        return made

    return make


def test_the_soft_limit_becomes_the_hard_one(limits, caplog):
    made = limits(1024, 100_000)
    with caplog.at_level(logging.INFO):
        assert open_files.raise_limit() == 100_000
    assert made.now == (100_000, 100_000)
    assert "open files: 100000 are allowed (1024 before)" in caplog.text
    assert open_files.connections_max() == 100_000 - 1024


def test_too_low_a_hard_limit_is_said_with_numbers_and_what_to_do(limits, caplog):
    limits(1024, 4096)
    assert open_files.raise_limit() == 4096
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "4096 are allowed, so at most 3072 connections are; 16384 are advised" in record.getMessage()
    assert "LimitNOFILE=" in record.getMessage()


def test_a_limit_that_cannot_be_raised_is_said(limits, caplog):
    limits(1000, 4096, refuse=True)
    assert open_files.raise_limit() == 1000
    assert "the limit of 1000 could not be raised to 4096: not allowed" in caplog.text
    assert open_files.connections_max() == 500, "half of a small limit is the store's"


def test_no_limit(limits):
    limits(resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert open_files.raise_limit() == 1 << 30
