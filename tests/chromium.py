"""A headless Chromium that tests look at pages with, driven over its debugging pipe: no package is needed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATH = Path(os.environ.get("SUBLIGHT_CHROMIUM", "/usr/bin/chromium"))
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)
TIMEOUT_S = 60.0


class Page:
    """One page of a browser of its own. Use as a context manager."""

    def __init__(self, profile: Path) -> None:
        reads, self._commands = os.pipe()
        self._events, writes = os.pipe()

        def hand_over() -> None:
            """The debugging pipe is file descriptors 3 and 4 of the browser."""
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (reads, writes)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [str(PATH), *FLAGS, f"--user-data-dir={profile}", "about:blank"], preexec_fn=hand_over, close_fds=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._buffer, self._last, self._session = b"", 0, ""
        self.problems: list[str] = []            # console errors, exceptions, refusals by the page's policy
        self.requests: list[str] = []            # whatever the page asked for
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)
        os.close(self._commands)
        os.close(self._events)

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The result of a command of the DevTools protocol."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": dict(params or {})}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file and wait until it is there."""
        self.send("Emulation.setDeviceMetricsOverride",
                  {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.send("Page.navigate", {"url": path.as_uri()})
        self.until("location.href !== 'about:blank' && document.readyState === 'complete'")
        self.frame()

    def until(self, condition: str) -> None:
        """Wait until an expression is true in the page, be it a page that is still to come."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self.run(condition):
            assert time.monotonic() < deadline, f"not true in {TIMEOUT_S} s: {condition}"
            time.sleep(0.02)

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        got = self.send("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        assert "exceptionDetails" not in got, f"{expression}: {got['exceptionDetails']}"
        return got["result"].get("value")

    def frame(self) -> None:
        """Wait until what was asked for is drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def key(self, key: str) -> None:
        """Press a key where the focus is."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", {"type": kind, "key": key} | (text if kind == "keyDown" else {}))

    def mouse(self, kind: str, x: float, y: float, **more: object) -> None:
        """`kind` is "mouseMoved", "mousePressed", "mouseReleased" or "mouseWheel"."""
        self.send("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Save a PNG of the page."""
        got = self.send("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(got["data"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._events], [], [], TIMEOUT_S)
            data = os.read(self._events, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("the browser does not answer")
            self._buffer += data
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {params['message']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
