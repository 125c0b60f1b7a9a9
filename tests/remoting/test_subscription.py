"""Tag expressions."""

import pytest

from remoting.errors import ProtocolError
from remoting.filters.subscription import TagFilter, split_expression
from remoting.messages.message import java_hash


@pytest.mark.parametrize("expression", ["*", "", None])
def test_all(expression):
    assert split_expression(expression) is None
    wanted = TagFilter.from_expression(expression)
    assert wanted.codes is None
    assert wanted.matches(0)
    assert wanted.matches(-5)


def test_tags():
    wanted = TagFilter.from_expression(" TagA||TagB || ")
    assert wanted.codes == {java_hash("TagA"), java_hash("TagB")}
    assert wanted.matches(java_hash("TagB"))
    assert not wanted.matches(0)
    assert wanted == TagFilter.from_tags(["TagB", "TagA"])
    assert hash(wanted) == hash(TagFilter.from_tags(["TagB", "TagA"]))


def test_blank_tags_want_nothing_as_in_the_reference():
    assert split_expression(" || ") == []
    assert not TagFilter.from_expression("|| ").matches(0)


def test_bars_only_are_refused():
    with pytest.raises(ProtocolError, match="no tag"):
        TagFilter.from_expression("||")


def test_no_tag_at_all_is_not_the_text_null():
    assert TagFilter.from_expression("null").matches(java_hash("null"))
    assert not TagFilter.from_expression("null").matches(0)
