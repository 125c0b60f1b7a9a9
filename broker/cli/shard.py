"""``python -m broker.cli.shard SPEC``: one shard. Only the supervisor starts it (`broker.shards.processes`).

SPEC is a JSON object: ``file``, ``options`` and ``settings`` as `broker.config.broker_config.load_config` takes them;
``fd``, the file descriptor of the link to the supervisor; ``embedded``, whether the supervisor runs the name server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from broker.cli.common import USER_ERRORS, run_until_signal
from broker.cli.run import serve
from broker.config.broker_config import load_config
from broker.config.logs import log_settings
from broker.open_files import raise_limit
from broker.shards.link import ShardLink
from broker.shards.processes import pipe_logging

__all__ = ["main"]

log = logging.getLogger("broker")


def main() -> None:
    """Run a shard until SIGTERM, or until the supervisor is gone. Exit status 1: it failed, and the log says why."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # ignored until the broker can reload its files
    os.set_inheritable(spec["fd"], False)
    file = None if spec["file"] is None else Path(spec["file"])
    end_logging = pipe_logging("INFO", sys.stdout)
    try:
        read = partial(load_config, file, spec["options"], spec["settings"])
        config = read()
        logging.getLogger().setLevel(config.get_text("logLevel"))
        log_settings(config)
        raise_limit()

        async def run(stop: asyncio.Event) -> None:
            link = ShardLink(spec["fd"], spec["embedded"], stop.set)
            await serve(config, stop, None if file is None else read, link)

        run_until_signal(run)
    except USER_ERRORS as error:
        log.critical("%s", error)
        sys.exit(1)
    except Exception:
        log.critical("the broker stops because of an internal error", exc_info=True)
        sys.exit(1)
    finally:
        end_logging()


if __name__ == "__main__":
    main()
