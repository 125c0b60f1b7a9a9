"""All errors that `remoting` raises on purpose; bytes from the network or the disk cause no others.

RemotingError
├── ProtocolError        a frame, a header or a body that is not RocketMQ's protocol
│   └── HeaderError      one header field is missing or has a value of another type
├── MessageError         a message that cannot be stored as it is (topic, properties, batch)
└── RecordError          bytes that are no CommitLog record
"""

from __future__ import annotations

__all__ = ["HeaderError", "MessageError", "ProtocolError", "RecordError", "RemotingError"]


class RemotingError(Exception):
    """Base of the errors of this package; the text names the field and the value."""


class ProtocolError(RemotingError):
    """Bytes that are not RocketMQ's protocol; after one from a frame decoder the connection must be closed."""


class HeaderError(ProtocolError):
    """A header field is missing or unreadable; the request is answered with an error, the connection stays usable."""

    def __init__(self, name: str, value: object, wanted: str) -> None:
        self.name = name
        self.value = value
        if value is None:
            super().__init__(f"header field {name} is missing ({wanted} wanted)")
        else:
            super().__init__(f"header field {name} is not {wanted}: {value!r:.100}")


class MessageError(RemotingError):
    """A message that cannot become a record; the sender must change it."""


class RecordError(RemotingError):
    """Bytes that are not a whole, consistent CommitLog record."""
