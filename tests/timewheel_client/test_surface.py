"""What the client exports is what its document names."""

from __future__ import annotations

import re
from pathlib import Path

import timewheel_client

DOC = Path(__file__).resolve().parents[2] / "docs" / "client.md"


def test_the_document_names_what_is_exported() -> None:
    code = " ".join(re.findall(r"`[^`]+`|^```.*?^```", DOC.read_text(), re.MULTILINE | re.DOTALL))
    named = set(re.findall(r"\b\w+\b", code))
    assert set(timewheel_client.__all__) <= named
