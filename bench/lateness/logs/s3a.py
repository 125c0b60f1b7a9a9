"""Hadoop's settings of its S3 client (``fs.s3a.…``), as options of s3fs, which reads ``s3a://`` here.

A user of Spark has them in the cluster's configuration, or gives them with ``--spark``. They are the same keys there::

    --spark spark.hadoop.fs.s3a.endpoint=minio:9000        wins over
    spark-defaults.conf: spark.hadoop.fs.s3a.endpoint …    wins over
    core-site.xml: <name>fs.s3a.endpoint</name> …          (in HADOOP_CONF_DIR)

``fs.s3a.bucket.NAME.…`` wins over ``fs.s3a.…`` for its bucket, as in Hadoop. ``--storage`` wins over all.

======================================  =============================================================================
setting, behind ``fs.s3a.``             option of s3fs
======================================  =============================================================================
``access.key`` ``secret.key``           ``key`` ``secret``; with ``--storage`` that has any of these, or ``token``,
``session.token``                       ``anon``, ``profile``, none is taken from the settings. ``token``
``endpoint``, ``endpoint.region``       ``client_kwargs``: ``endpoint_url``, ``region_name``
``connection.ssl.enabled``              https or http of an endpoint without a scheme
``path.style.access``                   ``config_kwargs``: ``{"s3": {"addressing_style": "path"}}``
``aws.credentials.provider``            ``anon`` if the first is ``AnonymousAWSCredentialsProvider``
======================================  =============================================================================

Others are not read, nor are credentials in a ``jceks`` file or values with ``${…}``. Why bytes are not read by Hadoop's
client: ``docs/decisions/0070-s3a-is-read-in-python.md``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

__all__ = ["hadoop_settings", "storage_of"]

_LEAD, _S3A = "spark.hadoop.", "fs.s3a."
_LOGIN = {"access.key": "key", "secret.key": "secret", "session.token": "token"}
_OWN_LOGIN = {*_LOGIN.values(), "anon", "profile"}
_AMAZONS = re.compile(r"(https?://)?s3\.amazonaws\.com/?")
"""Hadoop's default endpoint, which means: the one of the bucket's region."""
_LINE = re.compile(r"\s*([^\s=:#]+)\s*[\s=:]\s*(.*?)\s*")


def hadoop_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Hadoop's ``fs.s3a`` settings: of the cluster's configuration files, and of Spark's settings ``given``.

    Files that are missing or cannot be read have none.
    """
    found = _of_hadoop() | _of_spark() | dict(given)
    plain = {name.removeprefix(_LEAD): value for name, value in found.items() if name.startswith(f"{_LEAD}{_S3A}")}
    return {name: value.strip() for name, value in plain.items() if "${" not in value}


def _of_hadoop() -> dict[str, str]:
    """Settings of ``core-site.xml``, named as Spark names them."""
    try:
        text = (Path(os.environ["HADOOP_CONF_DIR"]) / "core-site.xml").read_text(encoding="utf-8")
        properties = ElementTree.fromstring(text).iter("property")
    except (KeyError, OSError, ValueError, ElementTree.ParseError):
        return {}
    pairs = ((one.findtext("name", "").strip(), one.findtext("value") or "") for one in properties)
    return {f"{_LEAD}{name}": value for name, value in pairs}


def _of_spark() -> dict[str, str]:
    """Settings of ``spark-defaults.conf``."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8").splitlines() if folder else []
    except (OSError, ValueError):
        return {}
    return {match[1]: match[2] for line in lines if (match := _LINE.fullmatch(line))}


def storage_of(uri: str, storage: str, settings: Mapping[str, str]) -> str:
    """The options (JSON) for the file system of a URI: for ``s3a://`` Hadoop's ``settings``, and over them ``storage``.

    >>> storage_of("s3a://logs/a", '{"anon": true}', {"fs.s3a.access.key": "k", "fs.s3a.endpoint": "minio:9000"})
    '{"client_kwargs": {"endpoint_url": "https://minio:9000"}, "anon": true}'
    """
    if not uri.startswith("s3a://"):
        return storage
    bucket = uri.split("/")[2]
    own = f"{_S3A}bucket.{bucket}."
    values = {name.removeprefix(_S3A): value for name, value in settings.items() if not name.startswith(own)}
    values |= {name.removeprefix(own): value for name, value in settings.items() if name.startswith(own)}
    given: dict[str, Any] = json.loads(storage) if storage else {}
    found = _options({name: value for name, value in values.items() if value})
    if given.keys() & _OWN_LOGIN:
        found = {name: value for name, value in found.items() if name not in _OWN_LOGIN}
    if "endpoint_url" in given and "client_kwargs" in found:
        found["client_kwargs"].pop("endpoint_url", None)
    merged = _merged(found, given)
    return json.dumps(merged) if merged else storage


def _options(values: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {option: values[name] for name, option in _LOGIN.items() if name in values}
    first = re.split(r"[,\s]+", values.get("aws.credentials.provider", ""))[0]
    if first.endswith(".AnonymousAWSCredentialsProvider"):
        found = {"anon": True}
    client = {}
    endpoint = values.get("endpoint", "")
    if endpoint and not _AMAZONS.fullmatch(endpoint):
        scheme = "http" if values.get("connection.ssl.enabled", "").lower() == "false" else "https"
        client["endpoint_url"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    if "endpoint.region" in values:
        client["region_name"] = values["endpoint.region"]
    if client:
        found["client_kwargs"] = client
    if values.get("path.style.access", "").lower() == "true":
        found["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    return found


def _merged(found: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Both, of dictionaries the values of both; where they differ the given ones."""
    both = {
        name: _merged(found[name], value) if isinstance(value, dict) and isinstance(found.get(name), dict) else value
        for name, value in given.items()
    }
    return {**found, **both}
