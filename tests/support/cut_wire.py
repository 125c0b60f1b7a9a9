"""A wire to a server that can be cut: a TCP relay in a thread of its own.

What a real cut does: bytes on the way are lost, and the two sides learn of it late or never. So what is on the way when
the wire is blocked for longer than a connection may keep bytes unacknowledged is dropped with its connection: a relay
that kept it and passed it on later would be worse than any network, which asks the sender's kernel again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine

from tests.support.wait import pause

__all__ = ["CutWire"]

CHUNK = 1 << 16


class CutWire:
    """Listens at an address and passes on to another one.

    Args:
        address: Where to listen, ``HOST:PORT``.
        target: The server, ``HOST:PORT``.
    """

    def __init__(self, address: str, target: str) -> None:
        self._address = address
        self._target = target
        self._to_server = asyncio.Event()
        self._to_client = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._ready = threading.Event()
        self.silent = threading.Event()
        """Set once `block` has begun."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(30), f"no relay at {address}"

    # ------------------------------------------------------------------------------------------------ faults

    def cut(self) -> None:
        """Reset all connections."""
        self._do(self._reset())

    def block(self, seconds: float, *, to_server: bool = True, to_client: bool = True) -> None:
        """Pass nothing on, in these directions, for so long; then reset what was open. Returns when it is over."""
        self._do(self._block(seconds, to_server, to_client))

    def close(self) -> None:
        """End it."""
        self._do(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    # ------------------------------------------------------------------------------------------------ inside

    def _do(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    async def _shut(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._reset()

    async def _reset(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    async def _block(self, seconds: float, to_server: bool, to_client: bool) -> None:
        for flag, blocked in ((self._to_server, to_server), (self._to_client, to_client)):
            if blocked:
                flag.clear()
        self.silent.set()
        await pause(seconds)
        await self._reset()
        self._to_server.set()
        self._to_client.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _listen(self) -> None:
        self._to_server.set()
        self._to_client.set()
        host, port = self._address.split(":")
        self._server = await asyncio.start_server(self._serve, host, int(port))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        host, port = self._target.split(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(far_writer)
        await asyncio.gather(
            self._pass(reader, far_writer, writer, self._to_server),
            self._pass(far_reader, writer, far_writer, self._to_client),
        )
        self._writers -= {writer, far_writer}

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        flag: asyncio.Event,
    ) -> None:
        try:
            while data := await reader.read(CHUNK):
                if not flag.is_set():
                    await flag.wait()  # by then the connection is reset: what it held is lost
                writer.write(data)
                await writer.drain()
        except (OSError, ConnectionError):
            pass
        finally:
            writer.transport.abort()
            back.transport.abort()
