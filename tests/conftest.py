"""Settings for every test."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says something of the machine, and never decides a test.
settings.register_profile("timewheel", deadline=None)
settings.load_profile("timewheel")
