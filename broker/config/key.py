"""What one configuration key is, what is wrong with a value, and which values are nobody's to see."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

__all__ = ["ConfigError", "Key", "Live", "is_secret", "shown"]

_SECRET = re.compile("passw|secret|credential|token", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether the value of a key must not be shown to anybody.

    >>> is_secret("tls.server.keyPassword"), is_secret("storage.secretKey"), is_secret("tls.server.keyPath")
    (True, True, False)
    """
    return _SECRET.search(name) is not None


def shown(name: str, text: str) -> str:
    """A key with its value as logs, answers and errors may have it."""
    return f"{name}={'******' if is_secret(name) and text else text}"


class ConfigError(ValueError):
    """A value that cannot be used; the text names the key, the value and what is allowed."""


class Live(Enum):
    """What lets a changed value take effect (`broker.live_config.apply_changes`)."""

    READ = "read anew each time that it is needed"
    RETENTION = "the store's retention is told"
    PULL = "pulls get other limits"
    TOPICS = "the topics' table is told"
    GROUPS = "the groups' table is told"
    BOUNDS = "the tables get other bounds"
    QUERY = "queries by key get another limit"
    LOG = "the log gets another level"


@dataclass(frozen=True, slots=True)
class Key:
    """One key: name, default as text, meaning, and a check that raises ValueError with what is allowed.

    ``live`` says what lets a change take effect while the broker runs; None: the key is read at start only.
    """

    name: str
    default: str
    meaning: str
    check: Callable[[str], None]
    live: Live | None = None

    def validate(self, text: str) -> str:
        """Check a value and return it without surrounding blanks; ConfigError names key, value and what is allowed."""
        text = text.strip()
        try:
            self.check(text)
        except ValueError as error:
            raise ConfigError(f"{shown(self.name, text)}: {error}") from None
        return text
