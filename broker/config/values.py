"""The checks of configuration values: each raises ValueError with what is expected, and changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv4Address

__all__ = [
    "a_master",
    "a_master_id",
    "a_name",
    "a_path",
    "a_token",
    "a_whole_number",
    "addresses",
    "an_address",
    "any_text",
    "hours",
    "ipv4",
    "label_pairs",
    "labels",
    "levels",
    "no_dledger",
    "one_of",
    "one_path",
    "optional_ipv4",
    "parse_address",
    "parse_addresses",
    "plugin_names",
    "true_or_false",
]


def parse_address(text: str, default_host: str = "127.0.0.1") -> tuple[str, int]:
    """Read ``HOST:PORT``, ``:PORT`` or ``PORT``; HOST is an IPv4 address or ``localhost``. Raises ValueError.

    >>> parse_address("0.0.0.0:10911"), parse_address("9876"), parse_address("localhost:1")
    (('0.0.0.0', 10911), ('127.0.0.1', 9876), ('127.0.0.1', 1))
    """
    host, _, port = text.strip().rpartition(":")
    try:
        number = int(port)
    except ValueError:
        raise ValueError(f"expected HOST:PORT, found {text!r}") from None
    if not 0 <= number <= 65535:
        raise ValueError(f"a port is between 0 and 65535, found {number}")
    return _host(host) if host else default_host, number


def parse_addresses(text: str) -> list[str]:
    """Split a list of ``HOST:PORT`` at ``;`` or ``,``; host names are allowed. Raises ValueError.

    >>> parse_addresses("192.0.2.1:9876; names.example:9876")
    ['192.0.2.1:9876', 'names.example:9876']
    """
    addresses = [part.strip() for part in re.split("[;,]", text) if part.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
            raise ValueError(f"expected HOST:PORT;HOST:PORT, found {address!r}")
    return addresses


def _host(text: str) -> str:
    if text == "localhost":
        return "127.0.0.1"
    try:
        return str(IPv4Address(text))
    except ValueError:
        raise ValueError(f"expected an IPv4 address, found {text!r}") from None


def a_whole_number(low: int, high: int) -> Callable[[str], None]:
    """Make a check for whole numbers in a range."""

    def check(text: str) -> None:
        if not re.fullmatch(r"[+-]?[0-9]+", text) or not low <= int(text) <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")

    return check


def true_or_false(text: str) -> None:
    """Check for true or false. Raises ValueError with what is expected."""
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")


def one_of(*allowed: str) -> Callable[[str], None]:
    """Make a check for a few words."""

    def check(text: str) -> None:
        if text not in allowed:
            raise ValueError(f"expected {' or '.join(allowed)}")

    return check


def a_name(text: str) -> None:
    """Check the name of a broker, cluster, region or topic. Raises ValueError with what is expected."""
    if not re.fullmatch(r"[A-Za-z0-9_.%|-]{1,127}", text):
        raise ValueError("expected 1 to 127 letters, digits, or - _ . % |")


def any_text(text: str) -> None:  # anything goes
    """Let anything pass."""
    del text


def a_path(text: str) -> None:
    """Check that something is given as a path. Raises ValueError with what is expected."""
    if not text or "\0" in text:
        raise ValueError("expected a path")


def one_path(text: str) -> None:
    """Check that it is one directory. Raises ValueError with what is expected."""
    a_path(text)
    if "," in text:
        raise ValueError("expected one directory: a CommitLog over several is not supported")


def hours(text: str) -> None:
    """Check hours of the day. Raises ValueError with what is expected."""
    parts = text.split(";")
    if not all(re.fullmatch("[0-9]{1,2}", part) and int(part) < 24 for part in parts):
        raise ValueError("expected hours of the day, such as 04 or 02;04;16")


def levels(text: str) -> None:
    """Check the list of levels' delays. Raises ValueError with what is expected."""
    if not all(re.fullmatch("[0-9]+[smhd]", part) for part in text.split(" ")):
        raise ValueError("expected delays between single blanks, each a number with s, m, h or d, such as 1s 5s 10m 2h")


def an_address(text: str) -> None:
    """Check HOST:PORT, or nothing. Raises ValueError with what is expected."""
    if text:
        parse_address(text)


def addresses(text: str) -> None:
    """Check a list of HOST:PORT. Raises ValueError with what is expected."""
    parse_addresses(text)


def ipv4(text: str) -> None:
    """Check an IPv4 address. Raises ValueError with what is expected."""
    _host(text)


def optional_ipv4(text: str) -> None:
    """Check an IPv4 address, or nothing. Raises ValueError with what is expected."""
    if text:
        _host(text)


def a_master(text: str) -> None:
    """Check the role: there are no slaves. Raises ValueError with what is expected."""
    if text == "SLAVE":
        raise ValueError("this broker stands alone: expected ASYNC_MASTER or SYNC_MASTER")
    one_of("ASYNC_MASTER", "SYNC_MASTER")(text)


def a_master_id(text: str) -> None:
    """Check a broker's id: there are no slaves. Raises ValueError with what is expected."""
    if text != "0":
        raise ValueError("this broker stands alone: expected 0, the id of a master")


def no_dledger(text: str) -> None:
    """Check that DLedger is off. Raises ValueError with what is expected."""
    true_or_false(text)
    if text.lower() == "true":
        raise ValueError("a DLedger log has a format of its own that is not read here: expected false")


def plugin_names(text: str) -> None:
    """Check names of plug-ins. Raises ValueError with what is expected."""
    for part in filter(None, (part.strip() for part in text.split(","))):
        if not re.fullmatch(r"[\w-]+|[\w.]+:\w+", part):
            raise ValueError(f"expected names or package.module:Class between commas, found {part!r}")


def label_pairs(text: str) -> list[tuple[str, str]]:
    """Read ``name:value,name:value``, as `metricsLabel` has it. Raises ValueError.

    >>> label_pairs("zone:a, rack:7")
    [('zone', 'a'), ('rack', '7')]
    """
    pairs = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, value = part.partition(":")
        if not colon or not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", name) or name.startswith("__"):
            raise ValueError(f"expected name:value,name:value, found {part!r}")
        pairs.append((name, value))
    return pairs


def labels(text: str) -> None:
    """Check `label_pairs`."""
    label_pairs(text)


def a_url(text: str) -> None:
    """Check an address of HTTP, or nothing. Raises ValueError with what is expected."""
    if text and not re.fullmatch(r"https?://[A-Za-z0-9.\[\]:-]{1,255}(/[!-~]{0,1024})?", text):
        raise ValueError("expected http://HOST:PORT/PATH, as http://127.0.0.1:4318/v1/traces")


def a_token(text: str) -> None:
    """Check a token: long enough not to be guessed. Raises ValueError with what is expected."""
    if text and not re.fullmatch(r"[!-~]{16,512}", text):
        raise ValueError("expected 16 to 512 printable characters without blanks")
