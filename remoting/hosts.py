"""Addresses as records hold them (4 or 16 bytes and the port as int32), and the message ids made of them."""

from __future__ import annotations

import ipaddress
from array import array
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from sys import byteorder

from remoting.errors import MessageError, RecordError

__all__ = ["NO_HOST", "decode_host", "encode_host", "message_id", "message_ids", "parse_message_id"]

NO_HOST = bytes(8)
"""0.0.0.0:0, for messages that no connection brought."""

_INT = Struct(">i")


@lru_cache(maxsize=4096)
def encode_host(ip: str, port: int) -> bytes:
    """Encode an address as records hold it: 4 or 16 bytes and the port as int32.

    An IPv4-mapped IPv6 address becomes IPv4. Raises MessageError for a text that is not an address.
    """
    try:
        # Behind `%` stands the zone of a link-local address (`fe80::1%eth0`): a record has no place for it.
        address = ipaddress.ip_address(ip.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address.packed + _INT.pack(port)
    except (ValueError, struct_error) as error:
        raise MessageError(f"not an IP address and port: {ip!r:.100}:{port}") from error


def decode_host(host: bytes) -> tuple[str, int]:
    """Read (ip, port) from 8 or 20 bytes; raises RecordError for another length."""
    if len(host) not in (8, 20):
        raise RecordError(f"a host has 8 or 20 bytes: {host!r:.100}")
    return str(ipaddress.ip_address(host[:-4])), int.from_bytes(host[-4:], "big", signed=True)


@lru_cache(maxsize=256)
def _hex(host: bytes) -> str:
    return host.hex().upper()


def message_id(store_host: bytes, offset: int) -> str:
    """Make the offset message id: store host and position in upper-case hex, 32 or 56 characters."""
    return "%s%016X" % (_hex(store_host), offset)  # noqa: UP031 (half the time of an f-string's format)


def message_ids(store_host: bytes, offsets: Iterable[int]) -> str:
    """Make the offset message ids of a batch, joined by commas: a fifth of the time of making each.

    >>> message_ids(NO_HOST, (1, 255))
    '00000000000000000000000000000001,000000000000000000000000000000FF'
    """
    numbers = array("q", offsets)
    if not numbers:
        return ""
    # Ids show the offset as big-endian hex digits.
    if byteorder == "little":
        numbers.byteswap()
    host = _hex(store_host)
    # All offsets become hex in one call, with a comma behind each 8 bytes; then each comma gets the host behind it.
    return host + numbers.tobytes().hex(",", numbers.itemsize).upper().replace(",", f",{host}")


def parse_message_id(text: str) -> tuple[bytes, int]:
    """Read (store host, offset) from an offset message id; raises MessageError for anything else."""
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise MessageError(f"not a message id: {text!r:.100}") from error
    # `fromhex` skips blanks, so the text must be measured as well.
    if len(text) not in (32, 56) or len(raw) * 2 != len(text):
        raise MessageError(f"a message id has 32 or 56 hex digits: {text!r:.100}")
    return raw[:-8], int.from_bytes(raw[-8:], "big", signed=True)
