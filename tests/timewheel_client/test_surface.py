"""What the client exports is what its document names, and the examples run."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import timewheel_client
from timewheel_client.consuming import ack_window, subscriptions
from timewheel_client.net import connection
from timewheel_client.values import arguments, delivery_time, reserved

DOC = Path(__file__).resolve().parents[2] / "docs" / "client.md"


def test_the_document_names_what_is_exported() -> None:
    code = " ".join(re.findall(r"`[^`]+`|^```.*?^```", DOC.read_text(), re.MULTILINE | re.DOTALL))
    named = set(re.findall(r"\b\w+\b", code))
    assert set(timewheel_client.__all__) <= named


def test_examples() -> None:
    for module in (ack_window, arguments, connection, delivery_time, reserved, subscriptions):
        outcome = doctest.testmod(module)
        assert outcome.attempted > 0
        assert outcome.failed == 0
