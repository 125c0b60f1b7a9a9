"""Certificates for tests, made anew by openssl for each run; no key is kept anywhere."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Certificate", "make_certificate"]


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate for 127.0.0.1 and its key, in PEM files."""

    certificate: Path
    key: Path


def make_certificate(folder: Path, name: str = "server", password: str = "") -> Certificate:
    """Make one (a small elliptic key: it is quick)."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"),
        *("-keyout", str(made.key), "-out", str(made.certificate), "-subj", f"/CN={name}"),
        *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
        *(("-passout", f"pass:{password}") if password else ("-nodes",)),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return made
