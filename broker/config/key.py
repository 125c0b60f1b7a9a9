"""One configuration key, the error for an invalid value, and the test for secret values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

__all__ = ["ConfigError", "Key", "Live", "is_secret", "shown"]

_SECRET = re.compile("passw|secret|credential|token", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """True if the value of a key is secret and must not be shown.

    >>> is_secret("tls.server.keyPassword"), is_secret("storage.secretKey"), is_secret("tls.server.keyPath")
    (True, True, False)
    """
    return _SECRET.search(name) is not None


def shown(name: str, text: str) -> str:
    """A key with its value for logs, answers and errors; a secret value is hidden."""
    return f"{name}={'******' if is_secret(name) and text else text}"


class ConfigError(ValueError):
    """An invalid value. The text names the key, the value and the values allowed."""


class Live(Enum):
    """The way in which a changed value takes effect while the broker runs (`broker.live_config.apply_changes`)."""

    READ = "the value is read again at each use"
    RETENTION = "the store's retention gets it"
    PULL = "pulls get the new limits"
    TOPICS = "the table of topics gets it"
    GROUPS = "the table of groups gets it"
    BOUNDS = "the tables get the new bounds"
    QUERY = "queries by unique key get the new limit"
    LOG = "the log gets the new level"


@dataclass(frozen=True, slots=True)
class Key:
    """One key: name, default as text, meaning, and a check that raises ValueError with the values allowed.

    ``live`` says how a change takes effect while the broker runs; None: the key is read at start only.
    """

    name: str
    default: str
    meaning: str
    check: Callable[[str], None]
    live: Live | None = None

    def validate(self, text: str) -> str:
        """Check a value and return it without surrounding blanks; raises ConfigError."""
        text = text.strip()
        try:
            self.check(text)
        except ValueError as error:
            raise ConfigError(f"{shown(self.name, text)}: {error}") from None
        return text
