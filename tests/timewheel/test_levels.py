"""Slot arithmetic against the plainest way to say the same."""

from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

import timewheel
import timewheel.levels
import timewheel.slots
import timewheel.wheel
from timewheel.levels import level_of, level_table, lowest_bit, ring_distance, slot_of, slot_start_ms

times = st.integers(0, 2**50)
bits_per_digit = st.integers(1, 9)


def digits_of(value: int, slot_bits: int) -> list[int]:
    digits = []
    while value:
        digits.append(value % (1 << slot_bits))
        value //= 1 << slot_bits
    return digits + [0] * (64 - len(digits))


@given(times, times, bits_per_digit, st.integers(2, 8))
def test_the_level_is_the_highest_differing_digit(due: int, at: int, slot_bits: int, levels: int) -> None:
    pairs = zip(digits_of(due, slot_bits), digits_of(at, slot_bits), strict=True)
    differing = [place for place, (a, b) in enumerate(pairs) if a != b]
    assert level_of(due, at, slot_bits, levels) == min(max(differing, default=0), levels - 1)
    assert level_table(slot_bits, levels)[(due ^ at).bit_length()] == level_of(due, at, slot_bits, levels)


@given(times, bits_per_digit, st.integers(0, 5))
def test_a_slot_begins_where_the_lower_digits_are_zero(due: int, slot_bits: int, level: int) -> None:
    slot = slot_of(due, level, slot_bits)
    assert slot == digits_of(due, slot_bits)[level]
    start = slot_start_ms(due, level, slot, slot_bits)
    assert start <= due < start + (1 << (level * slot_bits))
    assert start % (1 << (level * slot_bits)) == 0


@given(st.integers(0, 2**16 - 1), st.integers(0, 15))
def test_bit_scans(bits: int, place: int) -> None:
    ones = [index for index in range(16) if bits >> index & 1]
    assert lowest_bit(bits) == min(ones, default=-1)
    assert ring_distance(bits, place, 16) == min(((index - place) % 16 for index in ones), default=-1)


def test_the_examples_in_the_docstrings_run() -> None:
    for module in (timewheel, timewheel.levels, timewheel.slots, timewheel.wheel):
        outcome = doctest.testmod(module)
        assert outcome.failed == 0, module.__name__
    assert doctest.testmod(timewheel.wheel).attempted > 0


def test_the_public_surface() -> None:
    assert timewheel.__all__ == ["TimingWheel"]
