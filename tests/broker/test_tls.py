"""TLS and plain connections on the same port: real sockets on 127.0.0.1, certificates made for the test."""

import asyncio
import os
import ssl

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.key import ConfigError
from broker.net.tls import Tls, make_tls
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, encode_command
from remoting.connection import FrameDecoder
from tests.broker.core_rig import Rig as CoreRig
from tests.broker.test_server import Rig
from tests.support.certificates import make_certificate


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"), "other")


class Client:
    """An asyncio stream that speaks frames."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.decoder = FrameDecoder()

    @classmethod
    async def connect(cls, port, trusted=None, shown=None):
        context = None
        if trusted is not None:
            context = ssl.create_default_context(cafile=trusted.certificate)
            if shown is not None:
                context.load_cert_chain(shown.certificate, shown.key)
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context))

    async def ask(self, command):
        self.writer.write(encode_command(command))
        return await self.reply()

    async def reply(self):
        while True:
            try:
                data = await asyncio.wait_for(self.reader.read(1 << 16), 10)
            except ConnectionResetError:
                return None
            if not data:
                return None
            commands = self.decoder.feed(data)
            if commands:
                return commands[0]

    async def close(self):
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (OSError, ssl.SSLError):
            pass


def run(tls, talk):
    async def main():
        async with Rig(tls=tls) as rig:
            await talk(rig)

    asyncio.run(main())


def echo(n, body=b"x"):
    return RemotingCommand(1, n, body=body)


def test_both_kinds_on_one_port(own):
    async def talk(rig):
        secret = await Client.connect(rig.port, own)
        plain = await Client.connect(rig.port)
        for n in range(3):
            assert (await secret.ask(echo(n, b"secret"))).body == b"secret"
            assert (await plain.ask(echo(n, b"plain"))).body == b"plain"
        assert rig.server.connection_count == 2
        assert rig.closed == []
        await secret.close()
        await plain.close()
        while rig.server.connection_count:
            await asyncio.sleep(0)
        assert len(rig.closed) == 2

    run(Tls(own.certificate, own.key), talk)


def test_large_frames_both_ways(own):
    async def talk(rig):
        client = await Client.connect(rig.port, own)
        body = os.urandom(3 << 20)
        assert (await client.ask(echo(1, body))).body == body
        assert (await client.ask(RemotingCommand(3, 2))).body == bytes(1 << 20)
        await client.close()

    run(Tls(own.certificate, own.key), talk)


def test_replies_of_a_turn_and_a_last_word(own):
    async def talk(rig):
        client = await Client.connect(rig.port, own)
        assert (await client.ask(RemotingCommand(2, 1))).remark == "gathered"
        assert (await client.ask(RemotingCommand(4, 2))).remark == "bye"
        assert await client.reply() is None
        assert rig.server.connection_count == 0
        await client.close()

    run(Tls(own.certificate, own.key), talk)


def test_enforcing_refuses_plain_connections(own):
    async def talk(rig):
        plain = await Client.connect(rig.port)
        assert await plain.ask(echo(1)) is None
        secret = await Client.connect(rig.port, own)
        assert (await secret.ask(echo(1))).body == b"x"
        await secret.close()
        await plain.close()

    run(Tls(own.certificate, own.key, enforcing=True), talk)


def test_without_tls_a_hello_is_no_frame(own):
    async def talk(rig):
        with pytest.raises((ssl.SSLError, OSError)):
            await Client.connect(rig.port, own)
        plain = await Client.connect(rig.port)
        assert (await plain.ask(echo(1))).body == b"x"
        await plain.close()

    run(None, talk)


def test_clients_have_to_show_who_they_are(own, other):
    tls = Tls(own.certificate, own.key, trust=other.certificate, verify=ssl.CERT_REQUIRED)

    async def talk(rig):
        known = await Client.connect(rig.port, own, other)
        assert (await known.ask(echo(1))).body == b"x"
        await known.close()
        for shown in (None, own):
            with pytest.raises((ssl.SSLError, OSError)):
                client = await Client.connect(rig.port, own, shown)
                if await client.ask(echo(1)) is None:
                    raise ConnectionError("closed")

    run(tls, talk)


def test_garbage_closes_only_its_own_connection(own):
    async def talk(rig):
        good = await Client.connect(rig.port, own)
        for garbage in (b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" + os.urandom(500), b""):
            bad = await Client.connect(rig.port)
            bad.writer.write(garbage)
            bad.writer.write_eof()
            while await asyncio.wait_for(bad.reader.read(1 << 16), 10):
                pass
            await bad.close()
        assert (await good.ask(echo(1))).body == b"x"
        bad = await Client.connect(rig.port, own)
        bad.writer.write(b"\x00\x00\x00\x01 no frame")
        assert await bad.reply() is None
        assert (await good.ask(echo(2))).body == b"x"
        await good.close()
        await bad.close()
        assert rig.server.connection_count <= 1

    run(Tls(own.certificate, own.key), talk)


def test_silent_connections_are_swept(own):
    async def talk(rig):
        silent = await Client.connect(rig.port)
        while not rig.server.connection_count:
            await asyncio.sleep(0)
        for _ in range(3):
            rig.server.sweep(1_000)
        assert rig.server.connection_count == 0
        assert await silent.reply() is None
        await silent.close()

    async def main():
        async with Rig(tls=Tls(own.certificate, own.key), idle_ms=1_000) as rig:
            await talk(rig)

    asyncio.run(main())


def test_a_new_certificate_counts_for_new_connections(own, other, tmp_path, caplog):
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"

    def put(pair):
        certificate.write_bytes(pair.certificate.read_bytes())
        key.write_bytes(pair.key.read_bytes())

    put(own)
    tls = Tls(certificate, key)

    async def talk(rig):
        old = await Client.connect(rig.port, own)
        assert not tls.reload()
        put(other)
        assert tls.reload()
        new = await Client.connect(rig.port, other)
        certificate.write_bytes(b"rubbish")
        assert not tls.reload()
        certificate.unlink()
        assert not tls.reload()
        assert "the new certificate is not used, the old one stays" in caplog.text
        newer = await Client.connect(rig.port, other)
        for client in (old, new, newer):
            assert (await client.ask(echo(1))).body == b"x"
            await client.close()

    run(tls, talk)


# ------------------------------------------------------------------------------------------------ configuration


def configured(tmp_path, **values):
    settings = {f"tls.server.{name}".replace("__", "."): str(value) for name, value in values.items()}
    return make_tls(BrokerConfig(tmp_path, settings))


def test_modes(tmp_path, own):
    assert configured(tmp_path) is None
    assert configured(tmp_path, mode="disabled", certPath=own.certificate, keyPath=own.key) is None
    permissive = configured(tmp_path, certPath=own.certificate, keyPath=own.key)
    assert permissive is not None and not permissive.enforcing
    enforcing = configured(tmp_path, mode="enforcing", certPath=own.certificate, keyPath=own.key)
    assert enforcing is not None and enforcing.enforcing


def test_key_and_chain_in_one_file_and_a_password(tmp_path, own):
    both = tmp_path / "both.pem"
    both.write_bytes(own.key.read_bytes() + own.certificate.read_bytes())
    assert configured(tmp_path, certPath=both) is not None
    locked = make_certificate(tmp_path, "locked", "open sesame")
    assert configured(tmp_path, certPath=locked.certificate, keyPath=locked.key, keyPassword="open sesame")
    with pytest.raises(ConfigError, match="TLS: cannot use"):
        configured(tmp_path, certPath=locked.certificate, keyPath=locked.key, keyPassword="wrong")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"mode": "enforcing"}, "mode=enforcing: expected tls.server.certPath"),
        ({"mode": "sometimes"}, "expected permissive or enforcing or disabled"),
        ({"certPath": "/no/where.pem"}, "TLS: cannot use /no/where.pem: [Errno 2] No such file or directory"),
        ({"certPath": "CERT"}, "(is the key in a file of its own? tls.server.keyPath names it)"),
        ({"certPath": "CERT", "need__client__auth": "require"}, "auth=require: expected tls.server.trustCertPath"),
        ({"certPath": "CERT", "authClient": "true"}, "auth=require: expected tls.server.trustCertPath"),
    ],
)
def test_what_cannot_be_meant_is_an_error(tmp_path, own, values, problem):
    values = {name: own.certificate if value == "CERT" else value for name, value in values.items()}
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, **values)
    assert problem in str(caught.value)


def test_the_password_is_told_to_nobody(tmp_path):
    rig = CoreRig(tmp_path / "store", **{"tls.server.keyPassword": "open sesame"})
    reply = rig.client().ask(RequestCode.GET_BROKER_CONFIG)
    assert b"tls.server.mode=permissive" in reply.body
    assert b"sesame" not in reply.body and b"keyPassword" not in reply.body
    rig.close()
