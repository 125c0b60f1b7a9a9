"""One command as a value, and its frame as bytes.

A frame (big-endian)::

    0      4  total: bytes that follow (4 + header + body)
    4      1  serialize type: 0 JSON, 1 binary
    5      3  header length
    8      h  header
    8 + h  n  body

JSON header: ``{"code":…,"language":"JAVA","version":…,"opaque":…,"flag":…,"remark":…,"extFields":{…}}``.
Binary header: ``code i16 | language i8 | version i16 | opaque i32 | flag i32 | remark i32+n | ext i32+n``, ext being
repeated ``key i16+n | value i32+n``; zero lengths mean absent. Numbers beyond 16 bits are cut to their low 16 bits, as
Apache's code does it.

A reply has the serialize type of its request (one client reads only JSON). Values of extFields are strings. If a client
sends numbers or booleans instead, the value is their JSON text, because the client's signature was computed from that
text.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Any, Final

import orjson

from remoting.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    MAX_FRAME_BYTES,
    SERIALIZE_BINARY,
    SERIALIZE_JSON,
    VERSION,
    LanguageCode,
)
from remoting.errors import ProtocolError
from remoting.odd_fields import check_size, ext_as_text

__all__ = [
    "REGION",
    "ProtocolError",
    "RemotingCommand",
    "decode_command",
    "decode_json",
    "encode_command",
    "request",
]

REGION: Final = "DefaultRegion"
"""MSG_REGION of send replies: with this text Aliyun's client sends no traces."""


# `Final`: compiled, a name that never changes is not looked up for each command.
_loads: Final = orjson.loads
_WORDS: Final = Struct(">II")
_BINARY_HEAD = Struct(">hbhiii")
_INT = Struct(">i")
_SHORT = Struct(">h")
_LANGUAGE_NAMES: dict[int, str] = {code.value: code.name for code in LanguageCode}
_LANGUAGE_NUMBERS: dict[str, int] = {code.name: code.value for code in LanguageCode}


class RemotingCommand:
    """A request or a reply.

    ==================  =====================================================================
    ``code``            int, `RequestCode` or `ResponseCode`
    ``opaque``          int32, the requester's number for it, copied into the reply
    ``flag``            int, bit 0 reply, bit 1 one-way
    ``language``        str, the peer's language, any text
    ``version``         int, the peer's version ordinal
    ``remark``          str or None, an error text in replies
    ``ext``             dict of str to str, the header fields
    ``body``            bytes
    ``serialize_type``  0 JSON, 1 binary
    ==================  =====================================================================
    """

    __slots__ = (
        "body",
        "code",
        "ext",
        "flag",
        "language",
        "opaque",
        "remark",
        "serialize_type",
        "version",
    )

    def __init__(
        self,
        code: int,
        opaque: int,
        flag: int = 0,
        language: str = "JAVA",
        version: int = VERSION,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        serialize_type: int = SERIALIZE_JSON,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.language = language
        self.version = version
        self.remark = remark
        self.ext = {} if ext is None else ext
        self.body = body
        self.serialize_type = serialize_type

    @property
    def is_response(self) -> bool:
        """True if the command answers a request."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """True if the sender wants no reply."""
        return self.flag & FLAG_ONEWAY != 0

    def reply(
        self, code: int = 0, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Make the reply to this request: same opaque, same serialize type."""
        return RemotingCommand(
            code, self.opaque, FLAG_RESPONSE, "JAVA", VERSION, remark, ext, body, self.serialize_type
        )

    def __repr__(self) -> str:
        return (
            f"RemotingCommand(code={self.code}, opaque={self.opaque}, flag={self.flag}, remark={self.remark!r}, "
            f"ext={self.ext!r}, body={len(self.body)} bytes)"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemotingCommand):
            return NotImplemented
        return self._values() == other._values()

    def _values(self) -> tuple[object, ...]:
        """All attributes (classes compiled by mypyc have no ``__slots__`` to list them)."""
        return (
            self.code,
            self.opaque,
            self.flag,
            self.language,
            self.version,
            self.remark,
            self.ext,
            self.body,
            self.serialize_type,
        )

    __hash__ = None  # type: ignore[assignment]


def request(
    code: int,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 0,
    oneway: bool = False,
    language: str = "PYTHON",
    serialize_type: int = SERIALIZE_JSON,
) -> RemotingCommand:
    """Make a request."""
    flag = FLAG_ONEWAY if oneway else 0
    return RemotingCommand(code, opaque, flag, language, VERSION, None, ext, body, serialize_type)


# ------------------------------------------------------------------------------------------------ reading


def decode_command(data: bytes, header_word: int, at: int, end: int) -> RemotingCommand:
    """Read the command whose header begins at ``at`` and whose body ends at ``end``. Raises ProtocolError.

    ``header_word`` is the frame's second word: serialize type (8 bits) and header length (24 bits).
    """
    body_at = at + (header_word & 0xFFFFFF)
    if body_at > end:
        raise ProtocolError(f"header of {body_at - at} bytes in a frame with {end - at} left")
    serialize_type = header_word >> 24
    if serialize_type == SERIALIZE_JSON:
        return decode_json(data[at:body_at], data[body_at:end])
    if serialize_type == SERIALIZE_BINARY:
        try:
            return _decode_binary(data[at:body_at], data[body_at:end])
        except struct_error as error:
            raise ProtocolError("binary header is cut off") from error
    raise ProtocolError(f"unknown serialize type {serialize_type}")


def decode_json(header: bytes, body: bytes) -> RemotingCommand:
    """Read a command from its JSON header and its body; raises ProtocolError.

    Requests in the usual form take a fast path. A header with missing fields or other types takes a second, careful
    path with defaults and an error text for each fault.
    """
    try:
        fields = _loads(header)
        ext = fields["extFields"]
        "".join(ext.values())  # raises TypeError unless all are strings: the quickest test, a loop in C
        code, opaque, flag, version = fields["code"], fields["opaque"], fields["flag"], fields["version"]
        language = fields["language"]
        # Types are compared by `is`: a JSON boolean would pass `isinstance(…, int)`.
        if type(code) is type(opaque) is type(flag) is type(version) is int and type(language) is str:
            remark = fields.get("remark")
            if remark is None or type(remark) is str:
                return RemotingCommand(code, opaque, flag, language, version, remark, ext, body, SERIALIZE_JSON)
    except (KeyError, TypeError, AttributeError, ValueError):
        pass
    return _decode_json(header, body)


def _decode_json(header: bytes, body: bytes) -> RemotingCommand:
    try:
        fields = orjson.loads(header)
    except ValueError as error:
        raise ProtocolError(f"header is not JSON: {error}: {header!r:.200}") from error
    if type(fields) is not dict:
        raise ProtocolError(f"header is not a JSON object: {header!r:.200}")
    get = fields.get
    ext = get("extFields")
    if ext is None:
        ext = {}
    else:
        try:
            "".join(ext.values())  # the quickest way to learn that all of them are strings
        except (TypeError, AttributeError):
            check_size(header, fields)
            ext = ext_as_text(header)
    code = get("code", 0)
    opaque = get("opaque", 0)
    flag = get("flag", 0)
    version = get("version", 0)
    if not type(code) is type(opaque) is type(flag) is type(version) is int:
        raise ProtocolError(f"code, opaque, flag and version must be integers: {header!r:.200}")
    remark = get("remark")
    language = get("language", "OTHER")
    if type(language) is not str or (remark is not None and type(remark) is not str):
        raise ProtocolError(f"language and remark must be texts: {header!r:.200}")
    return RemotingCommand(code, opaque, flag, language, version, remark, ext, body, SERIALIZE_JSON)


def _decode_binary(header: bytes, body: bytes) -> RemotingCommand:
    code, language, version, opaque, flag, remark_length = _BINARY_HEAD.unpack_from(header)
    at = _BINARY_HEAD.size
    if not 0 <= remark_length <= len(header) - at:
        raise ProtocolError(f"remark of {remark_length} bytes in a header with {len(header) - at} left")
    remark = str(header[at : at + remark_length], "utf-8", "replace") if remark_length else None
    at += remark_length
    (ext_length,) = _INT.unpack_from(header, at)
    at += 4
    end = at + ext_length
    if ext_length < 0 or end > len(header):
        raise ProtocolError(f"ext block of {ext_length} bytes in a header with {len(header) - at} left")
    ext: dict[str, str] = {}
    while at < end:
        key_length, key_at = _SHORT.unpack_from(header, at)[0], at + 2
        at = key_at + key_length
        value_length, value_at = _INT.unpack_from(header, at)[0], at + 4
        at = value_at + value_length
        if key_length < 0 or value_length < 0 or at > end:
            raise ProtocolError(f"ext entry of {key_length} and {value_length} bytes leaves its block")
        if key_length and value_length:
            key = str(header[key_at : value_at - 4], "utf-8", "replace")
            ext[key] = str(header[value_at:at], "utf-8", "replace")
    name = _LANGUAGE_NAMES.get(language, "OTHER")
    return RemotingCommand(code, opaque, flag, name, version, remark, ext, body, SERIALIZE_BINARY)


# ------------------------------------------------------------------------------------------------ writing


def encode_command(command: RemotingCommand) -> bytes:
    """Write the whole frame, length word included.

    Raises ProtocolError for a text that is not Unicode and for a frame beyond 16 MiB.
    """
    try:
        if command.serialize_type == SERIALIZE_BINARY:
            header = _encode_binary(command)
        else:
            header = _encode_json(command)
    except (struct_error, UnicodeEncodeError, TypeError) as error:
        # A lone surrogate raises a TypeError in orjson.
        raise ProtocolError(f"cannot be written: {error}: {command!r:.500}") from error
    total = 4 + len(header) + len(command.body)
    if total + 4 > MAX_FRAME_BYTES or len(header) > 0xFFFFFF:
        raise ProtocolError(f"frame of {total + 4} bytes, at most {MAX_FRAME_BYTES} are allowed")
    return b"".join((_WORDS.pack(total, command.serialize_type << 24 | len(header)), header, command.body))


def _encode_json(command: RemotingCommand) -> bytes:
    fields: dict[str, Any] = {
        "code": command.code,
        "flag": command.flag,
        "language": command.language,
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    if command.remark is not None:
        fields["remark"] = command.remark
    if command.ext:
        fields["extFields"] = command.ext
    return orjson.dumps(fields)


def _encode_binary(command: RemotingCommand) -> bytes:
    remark = b"" if command.remark is None else command.remark.encode()
    return b"".join(
        (
            _BINARY_HEAD.pack(
                _int16(command.code),
                _LANGUAGE_NUMBERS.get(command.language, LanguageCode.OTHER),
                _int16(command.version),
                command.opaque,
                command.flag,
                len(remark),
            ),
            remark,
            _ext_block(command.ext),
        )
    )


def _int16(number: int) -> int:
    return (number + 0x8000 & 0xFFFF) - 0x8000


def _ext_block(ext: dict[str, str]) -> bytes:
    parts: list[bytes] = []
    for name, value in ext.items():
        key, text = name.encode(), value.encode()
        parts += (_SHORT.pack(len(key)), key, _INT.pack(len(text)), text)
    block = b"".join(parts)
    return _INT.pack(len(block)) + block


# ------------------------------------------------------------------------------------------------ the hot reply
