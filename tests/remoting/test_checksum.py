"""CRC-32 is zlib's, whichever library reckons it."""

import importlib.util
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.messages import checksum


@given(st.binary(max_size=70_000), st.integers(0, 0xFFFFFFFF), st.integers(0, 100))
def test_numbers_are_those_of_zlib(data: bytes, start: int, skip: int) -> None:
    wanted = zlib.crc32(data, start)
    assert checksum.crc32(data, start) == checksum.crc32(bytearray(data), start) == wanted
    assert checksum.crc32(memoryview(data)[skip:]) == zlib.crc32(data[skip:])


def test_without_the_quick_library_zlib_itself_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("isal", "isal.isal_zlib"):
        monkeypatch.setitem(sys.modules, name, None)
    spec = importlib.util.spec_from_file_location("checksum_without_isal", checksum.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.crc32 is zlib.crc32
