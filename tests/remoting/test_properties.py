"""Property texts: in-place lookups must agree with parsing, for every text."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remoting.errors import MessageError
from remoting.messages.properties import (
    OWN_PROPERTIES,
    format_properties,
    get_property,
    has_property,
    parse_properties,
    remove_properties,
    with_property,
)

names = st.text("AB_", min_size=1, max_size=3)
values = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=6)
messy_texts = st.text("AB_\x01\x02", max_size=40)


@given(st.dictionaries(names, values))
def test_what_is_formatted_is_parsed_back(properties):
    text = format_properties(properties)
    assert parse_properties(text) == properties
    assert parse_properties(text.removesuffix("\x02")) == properties


@given(messy_texts, names)
@example("A\x01\x02", "A")
@example("A\x01B\x02A\x01\x02", "A")
@example("BA\x01B\x02", "A")
@example("B\x01A\x01A\x02", "A")
def test_a_lookup_agrees_with_parsing_for_any_text(text, name):
    assert get_property(text, name) == parse_properties(text).get(name)
    assert has_property(text, name) == (name in parse_properties(text))


@given(messy_texts, names, values)
def test_an_appended_pair_wins_and_leaves_the_others(text, name, value):
    parsed = parse_properties(with_property(text, name, value))
    assert parsed == parse_properties(text) | {name: value}


@given(messy_texts, st.sets(names, max_size=3))
def test_removing_takes_these_names_and_no_others(text, unwanted):
    left = remove_properties(text, unwanted)
    assert parse_properties(left) == {k: v for k, v in parse_properties(text).items() if k not in unwanted}


def test_removing_nothing_gives_the_very_same_text():
    text = "KEYS\x01a b\x02"
    assert remove_properties(text, OWN_PROPERTIES) is text


@pytest.mark.parametrize(("name", "value"), [("a", "\x01"), ("a", "x\x02"), ("a\x01", "x"), ("\x02", "x")])
def test_separators_inside_are_refused(name, value):
    with pytest.raises(MessageError, match="separator"):
        format_properties({name: value})
