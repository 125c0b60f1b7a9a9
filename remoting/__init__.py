"""RocketMQ's protocol as values: bytes in, values out; no socket, no file, no clock."""

__all__: list[str] = []
