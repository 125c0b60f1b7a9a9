"""A headless Chromium that opens a page from disk and says what happened: requests, console, size, picture, PDF.

It is driven over its own debugging protocol through two pipes: no port, no library.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.cache import MissingToolError

__all__ = ["Chromium", "Seen"]

ANSWER_SECONDS = 60.0
# The protocol's pipes are the file descriptors 3 and 4 of the browser.
PIPES = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


@dataclass(slots=True)
class Seen:
    """What a page did while it was opened: URLs asked for, console lines and errors, width of content and window."""

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    content_px: int = 0
    window_px: int = 0


class Chromium:
    """One browser process; ``with Chromium() as browser``. Raises MissingToolError if there is none."""

    def __init__(self) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if program is None:
            raise MissingToolError("chromium not found: apt install chromium")
        self._profile = tempfile.mkdtemp(prefix="timewheel-chromium-")
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        command = [
            program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars", "--disable-extensions",
            f"--user-data-dir={self._profile}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", PIPES, str(to_read), str(to_write), *command],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._number = 0
        self._rest = b""
        self._events: list[dict[str, Any]] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    _session = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, page: Path, width: int, *, dark: bool = False) -> Seen:
        """Open a file in a window of that width, wait until it is loaded, and say what was seen."""
        return self.visit(page.as_uri(), width, dark=dark)

    def visit(self, url: str, width: int, *, dark: bool = False) -> Seen:
        """Open a URL like `open`."""
        self._events.clear()
        self._ask("Page.navigate", url="about:blank")  # what the page before still asks for is not this one's
        self._until("Page.loadEventFired")
        self._events.clear()
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", media="", features=[scheme])
        self._ask("Page.navigate", url=url)
        self._until("Page.loadEventFired")
        seen = Seen(
            content_px=int(self.evaluate("document.documentElement.scrollWidth")),
            window_px=int(self.evaluate("document.documentElement.clientWidth")),
        )
        for event in self._events:
            what = event["params"]
            if event["method"] == "Network.requestWillBeSent":
                seen.requests.append(what["request"]["url"])
            elif event["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                seen.complaints.append(json.dumps(what))
        return seen

    def complaints(self) -> list[str]:
        """Console lines and errors since the page was opened."""
        self.evaluate("0")  # what has happened before this has been read now
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self._events if event["method"] in kinds]

    def key(self, name: str) -> None:
        """Press a key: ``Tab``, ``Enter``, ``ArrowRight``, ``Escape``."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}
        text = {"text": "\r"} if name == "Enter" else {}
        what = {"key": name, "code": name, "windowsVirtualKeyCode": codes[name]}
        self._ask("Input.dispatchKeyEvent", type="keyDown", **what, **text)
        self._ask("Input.dispatchKeyEvent", type="keyUp", **what)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self._ask("Input.insertText", text=text)

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        return self._ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def picture(self, path: Path, *, of: str = "", scale: float = 1.0) -> None:
        """Write a PNG of the whole page, or of the first element that a CSS selector finds."""
        if of:
            found = f"document.querySelector({json.dumps(of)}).getBoundingClientRect()"
            box = self.evaluate(f"(b => [b.x + scrollX, b.y + scrollY, b.width, b.height])({found})")
        else:
            size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
            box = [0, 0, size["width"], size["height"]]
        clip = {**dict(zip(("x", "y", "width", "height"), box, strict=True)), "scale": scale}
        shot = self._ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path) -> None:
        """Print the page."""
        path.write_bytes(
            base64.b64decode(self._ask("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])
        )

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)
        raise TimeoutError(f"chromium did not answer {method}")

    def _until(self, event: str) -> None:
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            if any(found.get("method") == event for found in self._events):
                return
            self._events.append(self._read())
        raise TimeoutError(f"chromium did not say {event}")

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._from, 1 << 20)
            if not more:
                raise RuntimeError(f"chromium ended with {self._process.wait(10)}")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message
