"""Fetch and build everything the interop tests need, ahead of them: ``python -m tests.support.fetch``.

One line for each thing; exit status 1 if something could not be had (the line says what to install). With
``--group FILE`` it is a process group of its own, so that one signal ends it and the tools that it runs; the file has
the number of the group as long as it runs. If there is no such file, nobody wants it any more.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.support.admin import admin_classes
from tests.support.apache import VERSION, apache_jars
from tests.support.cache import FetchError, MissingToolError, cache_root
from tests.support.clients import CLIENTS
from tests.support.hdfs import hadoop_jars
from tests.support.proxy import client_command, proxy_jars
from tests.support.proxy_clients import LANGUAGES, language_command

__all__ = ["fetch_all"]


def fetch_all(say: Callable[[str], object]) -> bool:
    """Bring Apache's jars and all stock clients into the cache; False if anything is missing."""
    with tempfile.TemporaryDirectory() as home:
        wanted: dict[str, Callable[[], object]] = {f"Apache RocketMQ {VERSION}": apache_jars, "mqadmin": admin_classes}
        wanted["Apache's proxy"] = proxy_jars
        wanted["Apache Hadoop"] = hadoop_jars
        wanted["client of RocketMQ 5 (Java)"] = lambda: client_command(Path(home))
        for name in LANGUAGES:
            wanted[f"client of RocketMQ 5 ({name})"] = lambda name=name: language_command(name)  # type: ignore[misc]
        for name in CLIENTS:
            wanted[f"client {name}"] = CLIENTS[name].build
        complete = True
        for name, bring in wanted.items():
            try:
                bring()
                say(f"{name}: in {cache_root()}")
            except (MissingToolError, FetchError) as error:
                complete = False
                say(f"{name}: {error}")
    return complete


def main(words: list[str]) -> int:
    """Fetch everything; the exit status."""
    group = Path(words[1]) if words[:1] == ["--group"] else None
    if group is not None:
        if not group.exists():
            return 1
        os.setpgid(0, 0)
        group.write_text(str(os.getpid()))
    try:
        return 0 if fetch_all(lambda line: print(line, flush=True)) else 1
    finally:
        if group is not None:
            group.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
