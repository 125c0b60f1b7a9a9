"""The relay that process tests cut: it passes bytes on, resets, and loses what it held back."""

from __future__ import annotations

import socket
import threading

import pytest

from tests.support.cut_wire import CutWire
from tests.support.ports import free_port

PATIENCE_S = 60


def serve(server: socket.socket, heard: list[bytes]) -> None:
    """Answer what comes in with the same bytes, connection after connection."""
    while True:
        try:
            peer, _ = server.accept()
        except OSError:
            return
        with peer:
            try:
                while data := peer.recv(100):
                    heard.append(data)
                    peer.sendall(data)
            except OSError:
                pass


def answer(client: socket.socket) -> bytes:
    """What comes; nothing if the connection ends."""
    try:
        return client.recv(10)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(("to_server", "to_client"), [(True, True), (True, False), (False, True)])
def test_what_is_held_back_is_lost_with_its_connection(to_server: bool, to_client: bool) -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server, heard), daemon=True).start()
        address = f"127.0.0.1:{free_port()}"
        wire = CutWire(address, f"127.0.0.1:{server.getsockname()[1]}")
        host, port = address.split(":")
        try:
            with socket.create_connection((host, int(port)), PATIENCE_S) as client:
                client.sendall(b"a")
                assert client.recv(10) == b"a"
                blocked = threading.Thread(
                    target=wire.block, args=(1,), kwargs={"to_server": to_server, "to_client": to_client}
                )
                wire.silent.clear()
                blocked.start()
                assert wire.silent.wait(PATIENCE_S)
                client.sendall(b"b")
                assert not answer(client)
                blocked.join(PATIENCE_S)
            with socket.create_connection((host, int(port)), PATIENCE_S) as client:
                client.sendall(b"c")
                assert client.recv(10) == b"c"
            assert heard == ([b"a", b"c"] if to_server else [b"a", b"b", b"c"])
        finally:
            wire.close()
