"""SQL92 filters: what each construct means, what is refused and where, and a plain evaluator to agree with."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remoting.filters.sql_filter import Sql92Error, compile_sql92
from remoting.filters.sql_values import IncomparableError, compare_doubles, java_double, java_integer
from remoting.messages.properties import format_properties

MESSAGE = format_properties(
    {"five": "5", "half": "5.5", "word": "north", "yes": "true", "Shout": "TRUE", "big": "3000000000", "blank": " 7 "}
)

TRUE = [
    "five = 5",
    "five = 5.0",
    "five > 4 AND five < 6",
    "half > 5.4",
    "half = 5.5",
    "word = 'north'",
    "word <> 'south'",
    "word IN ('south', 'north')",
    "word NOT IN ('south', 'west')",
    "word CONTAINS 'ort' and word startswith 'no' and word EndsWith 'th'",
    "word NOT CONTAINS 'x'",
    "five BETWEEN 5 AND 5",
    "five NOT BETWEEN 6 AND 9",
    "five BETWEEN -1 AND 9",
    "five > -5",
    "big = 3000000000",
    "big = 3e9",
    "blank = 7.0",
    "half > five",
    "absent IS NULL",
    "five IS NOT NULL",
    "yes = TRUE",
    "Shout = true",
    "word = FALSE",
    "TRUE",
    "NOT (five = 6)",
    "five = 5 OR absent = 1",
    "absent = 1 OR five = 5",
    "absent = 1 OR NOT (five = 4)",
    "(((five = 5)))",
    "five = 5 -- of them\n AND /* a * star */ half > 5.0",
    "five=5AND half>5.0",
    "'it''s' = 'it''s'",
    "1 = 1",
    "TAGS IS NULL",
    "absent = absent2",
    "NOT (five = absent)",
    "- - 5 = +5",
    "+five = 5",
    "five > 0.0",
]
FALSE = [
    "five = 6",
    "word = 'North'",
    "WORD = 'north'",
    "absent = 1",
    "absent <> 1",
    "NOT (absent = 1)",
    "absent > 1 OR absent < 1",
    "absent IN ('a')",
    "absent NOT IN ('a')",
    "absent CONTAINS 'a'",
    "absent NOT CONTAINS 'a'",
    "word CONTAINS ''",
    "five IS NULL",
    "yes",
    "NOT yes AND FALSE",
    "NULL",
    "NOT NULL",
    "-five = -5",
    "NOT five = 5",
    "absent = five",
    "NOT (absent = five)",
    "1 = TRUE",
]
EVERYTHING_FALLS_WITH_IT = [  # no number where one is needed: nothing beside it counts any more
    "word > 5",
    "word = 5 OR five = 5",
    "NOT (word = 5)",
    "half = 5",
    "half > 5",
    "big > 5",
    "blank = 7",
    "word > five OR TRUE",
    "TRUE = yes",
]


@pytest.mark.parametrize("expression", TRUE)
def test_wanted(expression):
    assert compile_sql92(expression).matches(MESSAGE) is True


@pytest.mark.parametrize("expression", FALSE + EVERYTHING_FALLS_WITH_IT)
def test_unwanted(expression):
    assert compile_sql92(expression).matches(MESSAGE) is False


def test_what_was_decided_before_it_still_counts():
    assert compile_sql92("five = 5 OR word = 5").matches(MESSAGE) is True
    assert compile_sql92("NOT (five = 6 AND word = 5)").matches(MESSAGE) is True


@pytest.mark.parametrize(
    ("expression", "problem", "column"),
    [
        ("", "Expected a property, a value or an opening parenthesis, found the end", 1),
        ("a", None, 0),
        ("a =", "found the end", 4),
        ("a = 1 b", "Expected AND, OR or the end, found 'b'", 7),
        ("a > 'x'", "Value ''x'' cannot be compared with >", 3),
        ("a > TRUE", "Value 'TRUE' cannot be compared with >", 3),
        ("a = NULL", "'NULL' cannot be compared", 3),
        ("TRUE = 1", "'TRUE' cannot be compared with '1'", 6),
        ("a BETWEEN 5 AND 1", "left value(5) must less than or equal to right value(1)", 3),
        ("a BETWEEN NULL AND 1", "values can not be null", 3),
        ("a BETWEEN 1 OR 2", "Expected AND between the bounds, found 'OR'", 13),
        ("a IN (1)", "Expected a string in single quotes, found '1'", 7),
        ("a IN ('x'", "Expected a comma or the list's closing parenthesis, found the end", 10),
        ("'a' IN ('x')", "Expected a property for In expression, got: 'a'", 5),
        ("a NOT 5", "after NOT, found '5'", 7),
        ("a IS 5", "Expected NULL, found '5'", 6),
        ("a CONTAINS b", "Expected a string in single quotes, found 'b'", 12),
        ("5 AND a", "Expression will not result in a boolean value: 5", 1),
        ("a AND 'x'", "Expression will not result in a boolean value: 'x'", 7),
        ("NOT 5", "Expression will not result in a boolean value: 5", 1),
        ("a = 'x", "A string without its closing quote", 5),
        ("a = #", "Found '#'", 5),
        ("a = 007", "a whole number does not begin with 0", 5),
        ("a = 9223372036854775808", "is greater than 9223372036854775807", 5),
        ("a = 1e999", "is greater than 1.797", 5),
        ("(a = 1", "Expected AND, OR or a closing parenthesis, found the end", 7),
        ("größe = 1", "Found 'ö'", 3),
    ],
)
def test_errors_name_the_place(expression, problem, column):
    if problem is None:
        compile_sql92(expression)
        return
    with pytest.raises(Sql92Error) as caught:
        compile_sql92(expression)
    text = str(caught.value)
    assert text.startswith("Invalid MessageSelector. ")
    assert problem in text and text.endswith(f" at column {column}")


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 5_000,
        "NOT " * 4_000 + "a",
        "a" + " = b" * 4_000,
        "(NOT NOT NOT " * 64 + "a" + ")" * 64,
        "x" * 65_537,
        "'" * 65_535,
        "0" * 65_000,
        "/*" * 32_000,
        "--" * 32_000,
    ],
)
def test_too_deep_too_long_or_endless_is_refused(expression):
    with pytest.raises(Sql92Error):  # what is quadratic would take minutes
        compile_sql92(expression)


def test_long_rows_are_not_deep():
    wanted = compile_sql92(" OR ".join(f"a = {n}" for n in range(256)))
    assert wanted.matches(format_properties({"a": "255"})) and not wanted.matches(format_properties({"a": "256"}))
    assert compile_sql92(" AND ".join(["a = '1'"] * 256)).matches(format_properties({"a": "1"}))
    nested = compile_sql92("(" * 60 + "NOT (a = 1)" + ")" * 60)
    assert nested.matches(format_properties({"a": "2"}))


@given(st.text(alphabet="aANDORT NOTINULB=<>'(),5.eE+-/*\n\x01\x02", max_size=60))
def test_any_text_is_a_filter_or_an_error(text):
    try:
        wanted = compile_sql92(text)
    except Sql92Error as error:
        assert 1 <= error.column <= len(text) + 1
    else:
        assert wanted.matches(MESSAGE) in (True, False)


# ------------------------------------------------------------------------------------------------ Java's numbers


@pytest.mark.parametrize("text", ["", "+", "-", "5 ", "5L", "1_0", "5.0", "2147483648", "-2147483649", "0x5", "9" * 99])
def test_no_integer(text):
    with pytest.raises(IncomparableError):
        java_integer(text, 32)


def test_integers():
    texts = ["2147483647", "-2147483648", "+0005", "-0", "٥"]
    assert [java_integer(text, 32) for text in texts] == [2**31 - 1, -(2**31), 5, 0, 5]
    assert java_integer("-9223372036854775808", 64) == -(2**63)


@pytest.mark.parametrize(
    "text", ["", "nan", "inf", "1_0", "1.5.", ".", "e5", "0x10", "5L", "٥", "1" * 30_000 + "x", "+-1", "NaNf"]
)
def test_no_double(text):
    with pytest.raises(IncomparableError):
        java_double(text)


def test_doubles():
    texts = [" 5 ", "5d", "1e999", "-Infinity", ".5", "5.", "0x1p-1", "-0x1p9999", "1E+2F"]
    inf = float("inf")
    assert [java_double(text) for text in texts] == [5, 5, inf, -inf, 0.5, 5, 0.5, -inf, 100]
    ordered = [-inf, -1.0, -0.0, 0.0, 1.0, inf, float("nan")]
    for i, low in enumerate(ordered):
        for j, high in enumerate(ordered):
            assert compare_doubles(low, high) == (i > j) - (i < j)


# ------------------------------------------------------------------------------------------------ against a plain one

NAMES = ["a", "b"]
WORDS = ["x", "xy", "it's", "5", "true"]
VALUES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["x", "xy", "it's", "5", "7", "2.5", "-3", "true"]))


class BrokenError(Exception):
    """The whole filter says no."""


def as_number(text):
    try:
        return int(text)
    except ValueError:
        raise BrokenError from None


def quoted(word):
    return "'" + word.replace("'", "''") + "'"


# A condition is (text, function of the properties that returns True, False or None): the naive evaluator.
def _number_test(name, sign, number):
    tests = {
        "=": lambda v: v == number,
        "<>": lambda v: v != number,
        ">": lambda v: v > number,
        ">=": lambda v: v >= number,
        "<": lambda v: v < number,
        "<=": lambda v: v <= number,
    }
    return f"{name} {sign} {number}", lambda p: None if name not in p else tests[sign](as_number(p[name]))


def _word_test(name, sign, word):
    def evaluate(p):
        return None if name not in p else (p[name] == word) is (sign == "=")

    return f"{name} {sign} {quoted(word)}", evaluate


def _in(name, words, wanted):
    text = f"{name} {'' if wanted else 'NOT '}IN ({', '.join(map(quoted, words))})"
    return text, lambda p: None if name not in p else (p[name] in words) is wanted


def _between(name, bounds, wanted):
    low, high = sorted(bounds)

    def evaluate(p):
        return None if name not in p else (low <= as_number(p[name]) <= high) is wanted

    return f"{name} {'' if wanted else 'NOT '}BETWEEN {low} AND {high}", evaluate


def _null(name, wanted):
    return f"{name} IS {'' if wanted else 'NOT '}NULL", lambda p: (name not in p) is wanted


def _contains(name, word, wanted):
    text = f"{name} {'' if wanted else 'NOT '}CONTAINS {quoted(word)}"
    return text, lambda p: name in p and (word in p[name]) is wanted


def _not(inner):
    def evaluate(p):
        value = inner[1](p)
        return None if value is None else not value

    return f"NOT ({inner[0]})", evaluate


def _join(word, parts):
    decisive = word == "OR"

    def evaluate(p):
        values = []
        for part in parts:
            values.append(part[1](p))
            if values[-1] is decisive:
                return decisive
        return None if None in values else not decisive

    return f" {word} ".join(f"({text})" for text, _ in parts), evaluate


names, words, flags = st.sampled_from(NAMES), st.sampled_from(WORDS), st.booleans()
numbers = st.integers(-9, 9)
leaves = st.one_of(
    st.builds(_number_test, names, st.sampled_from(["=", "<>", ">", ">=", "<", "<="]), numbers),
    st.builds(_word_test, names, st.sampled_from(["=", "<>"]), words),
    st.builds(_in, names, st.lists(words, min_size=1, max_size=6), flags),
    st.builds(_between, names, st.tuples(numbers, numbers), flags),
    st.builds(_null, names, flags),
    st.builds(_contains, names, words, flags),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(_not, inner),
        st.builds(_join, st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=4)),
    ),
    max_leaves=12,
)


@given(conditions, VALUES)
@example(_not(_number_test("a", "=", 1)), {"a": "x"})
def test_agrees_with_a_plain_evaluator(condition, values):
    text, evaluate = condition
    try:
        expected = evaluate(values) is True
    except BrokenError:
        expected = False
    assert compile_sql92(text).matches(format_properties(values)) is expected, text
