"""The client and a real broker of ours that is stopped, restarted, or spoken to with TLS from the command line."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.certificates import make_certificate
from tests.support.ours import ROOT, OurBroker
from tests.support.wait import pause
from timewheel_client import ConnectionFailedError, Consumer, Producer, RequestTimeoutError
from timewheel_client.consuming.send_back import send_back

pytestmark = pytest.mark.process

PATIENCE_S = 90


@pytest.mark.asyncio
async def test_sends_outlive_a_kill_and_a_restart_of_the_broker(tmp_path: Path) -> None:
    broker = OurBroker(tmp_path).start()
    try:
        async with Producer(broker.namesrv, timeout_ms=30_000) as producer:
            await producer.send("t", b"before")
            broker.kill()
            sending = [asyncio.ensure_future(producer.send("t", b"%d" % number)) for number in range(20)]
            await pause(0.5)  # three tries of 0.3 s were over by now
            await asyncio.to_thread(broker.start)
            assert {result.status for result in await asyncio.gather(*sending)} == {"SEND_OK"}
        async with asyncio.timeout(PATIENCE_S), Consumer(broker.namesrv, "g", "t", start_from="first") as consumer:
            bodies: set[bytes] = set()
            async for message in consumer:
                bodies.add(message.body)
                await message.ack()
                if len(bodies) == 21:
                    break
    finally:
        broker.kill()


@pytest.mark.asyncio
async def test_a_broker_that_stands_still_holds_neither_send_nor_close(tmp_path: Path) -> None:
    broker = OurBroker(tmp_path).start()
    producer = await Producer(broker.namesrv, timeout_ms=1_000).start()
    try:
        await producer.send("t", b"x")
        os.kill(broker.child.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        sends = [producer.send("t", bytes(1 << 20)) for _ in range(20)]
        for error in await asyncio.gather(*sends, return_exceptions=True):
            assert isinstance(error, RequestTimeoutError | ConnectionFailedError)
        await producer.close()
        assert time.monotonic() - began < 15, "one after the other: 20 s"
    finally:
        os.kill(broker.child.process.pid, signal.SIGCONT)
        broker.kill()


@pytest.mark.asyncio
async def test_an_expired_message_goes_to_the_dead_letters_at_once(
    tmp_path: Path,
) -> None:
    """The broker cannot send back what it does not have: the copy must go where it was to go."""
    broker = OurBroker(tmp_path).start()
    try:
        async with Producer(broker.namesrv) as producer:
            await producer.send("t", b"hopeless", properties={"x": "y"})
        async with asyncio.timeout(PATIENCE_S), Consumer(broker.namesrv, "g", "t", start_from="first") as consumer:
            message = await consumer.__anext__()
            message.log_offset = 1 << 40  # where no record is any more
            await send_back(consumer._core, "g", message, -1)
        async with asyncio.timeout(PATIENCE_S), Consumer(broker.namesrv, "d", "%DLQ%g", start_from="first") as dead:
            letter = await dead.__anext__()
            assert (letter.body, letter.user_properties) == (b"hopeless", {"x": "y"})
    finally:
        broker.kill()


def test_the_command_line_speaks_tls_and_sql(tmp_path: Path) -> None:
    made = make_certificate(tmp_path / "tls")
    own = {"tls.server.certPath": str(made.certificate), "tls.server.keyPath": str(made.key)}
    broker = OurBroker(tmp_path, {"enablePropertyFilter": "true", **own}).start()

    def timewheel(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "broker.cli", *arguments, "--namesrv", broker.namesrv]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    try:
        trust = ("--tls-ca", str(made.certificate))
        for price in ("4", "5"):
            sent = timewheel("send", "t", f"price {price}", "--property", f"price={price}", *trust)
            assert (sent.returncode, sent.stderr) == (0, "")
        got = timewheel("consume", "t", "--sql", "price > 4", "--count", "1", *trust)
        assert got.returncode == 0
        assert got.stdout.endswith(" price 5\n")
        assert timewheel("send", "t", "x", "--tls-insecure").returncode == 0
        refused = timewheel("send", "t", "x", "--tls")
        assert refused.returncode == 1
        assert "the certificate is not trusted" in refused.stderr
        both = timewheel("send", "t", "x", "--tls-insecure", *trust)
        assert both.returncode == 2
        assert "exclude each other" in both.stderr
        assert timewheel("send", "t", "x", "--property", "TRAN_MSG=true").returncode == 2
    finally:
        broker.kill()
