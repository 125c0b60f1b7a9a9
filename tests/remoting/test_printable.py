"""What others have written, made fit for a log and a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from remoting.printable import printable


def test_what_is_obeyed_is_escaped_and_what_is_read_stays():
    assert printable("plain text, Grüße, 你好, 🎉") == "plain text, Grüße, 你好, 🎉"
    assert printable("\x1b]0;title\x07") == "\\x1b]0;title\\x07"
    assert printable("a\r\nb\tc\0") == "a\\r\\nb\\tc\\x00"
    assert printable("\x9b2J\u202ereversed\u2028\ud800") == "\\x9b2J\\u202ereversed\\u2028\\ud800"
    assert printable("one\ntwo\x1b", lines=True) == "one\ntwo\\x1b"


@given(st.text(alphabet=st.characters(), max_size=60), st.booleans())
def test_nothing_is_left_that_a_terminal_obeys(text, lines):
    shown = printable(text, lines)
    assert all(char >= " " and not "\x7f" <= char <= "\x9f" for char in shown if not (lines and char == "\n"))
    assert printable(shown, lines) == shown == shown.encode().decode()
