"""Passwords, keys and control characters: what never reaches a log, an answer or a terminal."""

from __future__ import annotations

import logging
from pathlib import Path

import click
import pytest

from broker.access.acl_file import AclFileError
from broker.access.acl_rules import AclRules
from broker.cli.common import say
from broker.config.broker_config import BrokerConfig, ConfigError
from broker.config.config_keys import USED_KEYS
from broker.config.key import Key, is_secret, shown
from broker.config.logs import log_directory, log_settings, start_logging
from remoting.codes import RequestCode
from tests.broker.core_rig import Rig


def test_which_keys_are_secret():
    assert [name for name in USED_KEYS if is_secret(name)] == ["tls.server.keyPassword", "httpToken"]
    assert shown("tls.server.keyPassword", "open sesame") == "tls.server.keyPassword=******"
    assert shown("tls.server.keyPassword", "") == "tls.server.keyPassword="
    assert shown("mine.secretKey", "x") == "mine.secretKey=******"

    def never(_: str) -> None:
        raise ValueError("expected nothing")

    with pytest.raises(ConfigError) as caught:
        Key("mine.password", "", "", never).validate("open sesame")
    assert str(caught.value) == "mine.password=******: expected nothing"


def test_secrets_are_not_logged_at_start(tmp_path: Path) -> None:
    values = {"tls.server.keyPassword": "open sesame", "delay.secretKey": "open sesame", "aclEnable": "true"}
    config = BrokerConfig(tmp_path, values)
    stop = start_logging(config)
    try:
        log_settings(config)
    finally:
        stop()
    text = (log_directory(config) / "broker.log").read_text()
    assert "sesame" not in text and "tls.server.keyPassword=******" in text and "delay.secretKey=******" in text
    assert "aclEnable=true without tls.server.mode=enforcing" in text, "and what ACL is worth without TLS is said"


@pytest.mark.parametrize("tls", [{}, {"tls.server.mode": "enforcing"}])
def test_access_rules_without_tls_are_warned_of(tmp_path: Path, tls: dict[str, str]) -> None:
    warnings = BrokerConfig(tmp_path, {"aclEnable": "true", **tls}).warnings
    assert any("aclEnable=true without" in text for text in warnings) is not bool(tls)
    assert not BrokerConfig(tmp_path, tls).warnings


def test_log_lines_of_peers_are_one_line_that_nobody_obeys(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = BrokerConfig(tmp_path)
    stop = start_logging(config)
    log = logging.getLogger("broker.test")
    try:
        log.warning("%s refused", "T" * 1_000_000)
        log.warning("%s refused", "T\n2026-01-01 00:00:00,000 ERROR broker: forged\x1b[2J\u202e")
        try:
            raise ValueError("in a traceback\n2026-01-01 00:00:00,000 ERROR broker: forged\x1b[2J")
        except ValueError:
            log.exception("failed")
    finally:
        stop()
    for text in ((log_directory(config) / "broker.log").read_text(), capfd.readouterr().err):
        assert "\x1b" not in text and "\u202e" not in text
        assert not any(line.startswith("2026-01-01") for line in text.splitlines())
        assert max(map(len, text.splitlines())) < 9_000 and "(cut, 1000008 characters)" in text
        assert "T\\n2026-01-01" in text and "\\x1b[2J" in text and "Traceback" in text


def test_what_commands_print_of_peers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from broker import cli

    say("body \x1b[31m\nred")
    assert capsys.readouterr().out == "body \\x1b[31m\\nred\n"

    def failing(*_: object, **__: object) -> None:
        raise click.ClickException("remark \x1b]0;x\x07\u202e")

    monkeypatch.setattr(cli._timewheel, "main", failing)
    with pytest.raises(SystemExit):
        cli.main([])
    assert capsys.readouterr().err == "timewheel: remark \\x1b]0;x\\x07\\u202e\n"


@pytest.mark.parametrize(
    "text",
    [
        "accounts:\n- accessKey: reader-1\n  secretKey open-sesame\n",
        "accounts:\n- accessKey: reader-1\n  secretKey:\n    open-sesame\n",
        "accounts:\n- accessKey: reader-1\n  secretKey: [open-sesame\n",
        "accounts:\n- accessKey: reader-1\n  secretKey: a: open-sesame\n",
        "accounts:\n- secretKey=open-sesame\n",
        "accounts:\n- accessKey: reader-1\n  secretKey: 12345678\n  topicPerms:\n    secretKey: open-sesame\n",
        "accounts:\n- accessKey: reader-1\n  secretKey: 12345678\n  admin: secretKey=open-sesame\n",
        "accounts:\n- accessKey: reader-1\n  secretKey: 12345678\n  topicPerms:\n  - secretKey open-sesame\n",
        "accounts:\n- accessKey: reader-1\n  secretKey: 12345678\n  defaultTopicPerm: secretKey open-sesame\n",
    ],
)
def test_a_bad_file_of_rules_does_not_tell_its_secrets(text: str) -> None:
    with pytest.raises(AclFileError) as caught:
        AclRules.read(text.encode())
    assert "sesame" not in str(caught.value), caught.value


def test_answers_do_not_tell_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = {"tls.server.keyPassword": "open sesame", "delay.secretKey": "open sesame"}
    rig = Rig(tmp_path / "store", **values)
    try:
        client = rig.client()
        assert b"sesame" not in client.ask(RequestCode.GET_BROKER_CONFIG).body
        reply = client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"tls.server.keyPassword=another sesame")
        assert reply.code == 1 and "sesame" not in (reply.remark or "")
    finally:
        rig.close()
    assert "sesame" not in caplog.text
