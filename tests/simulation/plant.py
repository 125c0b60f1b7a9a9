"""What a planted bug is: a mistake in the place of the right thing, and the kinds of findings that prove it.

A plant that raises because the product's signatures have changed would be "found" by its own exception, whatever it was
meant to show. So each of its functions runs in `guarded`: any error that comes out of it but a `StoreError` is noted in
`ERRORS` and goes on as a `PlantError`, which no part of the product catches and which is no finding.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from store.disk.errors import StoreError
from tests.simulation.kinds import Kind

__all__ = ["ERRORS", "SEEDS", "Plant", "PlantError", "guarded", "swap"]

SEEDS = 400
"""Within so many seeds every planted bug must be found."""

ERRORS: list[str] = []
"""What plants have raised themselves; `Plant` begins with none."""


class PlantError(BaseException):
    """A plant has failed to do what it was planted for."""


class Plant:
    """A mistake to be planted: ``with plant(): …``.

    Args:
        kinds: What it must be found by; any other finding does not count.
        make: Answers the context manager that puts it in.
        share: Share of the calls of the disk that are crash points.
        fond: What half of each story is about, for a bug that shows in few stories (`tests.simulation.swarm.HAPPENS`,
            `tests.simulation.troubles.TROUBLES`): what happens, and where and when, is drawn as always.
        first: A seed whose story shows it, tried before those from 0: a search costs up to ten minutes. It is out of
            date as soon as stories change with the product. So prefer stories that are fond of what the bug needs.
    """

    def __init__(
        self,
        make: Callable[[], AbstractContextManager[Any]],
        *kinds: Kind,
        share: float = 0.02,
        fond: str = "",
        first: int | None = None,
    ) -> None:
        assert kinds
        self.kinds = frozenset(kinds)
        self.share = share
        self.fond = fond
        self.first = first
        self._make = make

    @property
    def keys(self) -> bool:
        """Whether its stories may have delay keys; all others are stories of before there were any."""
        return self.fond.startswith("pending")

    @property
    def order(self) -> bool:
        """Whether its stories may have pops in order; all others are stories of before there were any."""
        return self.fond == "pop in order"

    def seeds(self) -> Iterator[int]:
        """The seeds that are tried, in their order."""
        if self.first is not None:
            yield self.first
        yield from range(SEEDS)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Plant it."""
        ERRORS.clear()
        with self._make():
            yield


def swap(*wrong: tuple[Any, str, Callable[..., Any]]) -> Callable[[], AbstractContextManager[Any]]:
    """Put functions in the place of others: (owner, name, wrong one)."""

    @contextmanager
    def make() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, function in wrong:
                assert hasattr(owner, name), f"{owner} has no {name} any more"
                stack.enter_context(patch.object(owner, name, guarded(function)))
            yield

    return make


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose own errors are told from findings."""
    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def steps(*args: Any, **named: Any) -> Any:
            try:
                return (yield from function(*args, **named))
            except StoreError:
                raise
            except Exception as error:
                raise _noted(function, error) from error

        return steps

    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except StoreError:
            raise
        except Exception as error:
            raise _noted(function, error) from error

    return call


def _noted(function: Callable[..., Any], error: Exception) -> PlantError:
    text = f"{getattr(function, '__name__', function)}: {type(error).__name__}: {error}"
    ERRORS.append(text)
    return PlantError(text)
