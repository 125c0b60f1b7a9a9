"""Hadoop's settings for ``s3a://`` as options of s3fs: where they come from, and which wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.lateness.logs.s3a import hadoop_settings, storage_of

LOGIN = {"fs.s3a.access.key": "k", "fs.s3a.secret.key": "s"}
ENDPOINT = {"fs.s3a.endpoint": "http://minio:9000/"}


@pytest.mark.parametrize(
    ("settings", "storage", "expected"),
    [
        ({}, {}, {}),
        (LOGIN, {}, {"key": "k", "secret": "s"}),
        (LOGIN | {"fs.s3a.session.token": "t"}, {}, {"key": "k", "secret": "s", "token": "t"}),
        (LOGIN | ENDPOINT, {"key": "mine", "secret": "own"}, {
            "key": "mine", "secret": "own", "client_kwargs": {"endpoint_url": "http://minio:9000/"},
        }),
        (LOGIN, {"anon": True}, {"anon": True}),
        (LOGIN, {"profile": "p"}, {"profile": "p"}),
        (ENDPOINT, {"client_kwargs": {"region_name": "r"}}, {
            "client_kwargs": {"endpoint_url": "http://minio:9000/", "region_name": "r"},
        }),
        (ENDPOINT, {"client_kwargs": {"endpoint_url": "http://other"}}, {
            "client_kwargs": {"endpoint_url": "http://other"},
        }),
        (ENDPOINT | {"fs.s3a.endpoint.region": "r"}, {"endpoint_url": "http://other"}, {
            "client_kwargs": {"region_name": "r"}, "endpoint_url": "http://other",
        }),
        ({"fs.s3a.endpoint": "minio:9000"}, {}, {"client_kwargs": {"endpoint_url": "https://minio:9000"}}),
        ({"fs.s3a.endpoint": "minio", "fs.s3a.connection.ssl.enabled": "False"}, {}, {
            "client_kwargs": {"endpoint_url": "http://minio"},
        }),
        ({"fs.s3a.endpoint": "s3.amazonaws.com"}, {}, {}),
        ({"fs.s3a.endpoint": "", "fs.s3a.access.key": ""}, {}, {}),
        ({"fs.s3a.path.style.access": "true"}, {"config_kwargs": {"s3": {"use_accelerate_endpoint": False}}}, {
            "config_kwargs": {"s3": {"addressing_style": "path", "use_accelerate_endpoint": False}},
        }),
        ({"fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"} | LOGIN, {}, {
            "anon": True,
        }),
        (LOGIN | {"fs.s3a.bucket.logs.access.key": "b", "fs.s3a.bucket.more.secret.key": "x"}, {}, {
            "key": "b", "secret": "s",
        }),
    ],
)  # fmt: skip
def test_options_of_s3fs(settings: dict[str, str], storage: dict[str, Any], expected: dict[str, Any]) -> None:
    found = storage_of("s3a://logs/a", json.dumps(storage) if storage else "", settings)
    assert json.loads(found or "{}") == expected
    for uri in ("s3://logs/a", "/logs/a", "webhdfs://host:1/logs/a"):
        assert storage_of(uri, json.dumps(storage), settings) == json.dumps(storage)


def test_the_nearer_setting_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert hadoop_settings({}) == {}
    site = "".join(
        f"<property>\n <name>fs.s3a.{name}</name>\n <value>{value}</value>\n</property>"
        for name, value in {"a": "site", "b": "site", "c": " site ", "d": "${env.SECRET}"}.items()
    )
    (tmp_path / "core-site.xml").write_text(f'<?xml version="1.0"?>\n<configuration>{site}</configuration>\n')
    lines = ["# spark.hadoop.fs.s3a.c x", "", "spark.hadoop.fs.s3a.a   default", "spark.hadoop.fs.s3a.b=default "]
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("\n".join([*lines, "spark.master yarn"]))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert hadoop_settings({}) == {"fs.s3a.a": "site", "fs.s3a.b": "site", "fs.s3a.c": "site"}
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    given = {"spark.hadoop.fs.s3a.a": "given", "spark.executor.cores": "1"}
    assert hadoop_settings(given) == {"fs.s3a.a": "given", "fs.s3a.b": "default", "fs.s3a.c": "site"}


@pytest.mark.parametrize("text", ["", "<configuration>", "\x00"])
def test_files_that_cannot_be_read_set_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "core-site.xml").write_text(text)
    (tmp_path / "spark-defaults.conf").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert hadoop_settings({}) == {}
