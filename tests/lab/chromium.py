"""A headless Chromium, spoken to by its DevTools protocol through a pipe: no package is needed."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
)


class Browser:
    """One page of one browser. ``complaints`` is what it wrote to its console, and errors that nothing caught."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4, each closed by a zero byte
        command = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        options = (*FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}")
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", PROGRAM, *options],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._left, self._numbers = b"", itertools.count(1)
        self._session: str | None = None
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End it."""
        os.close(self._write)  # which is what tells it to end
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def call(self, method: str, **params: Any) -> Any:
        """The answer to one command."""
        message = {"id": next(self._numbers), "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != message["id"]:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def run(self, code: str) -> Any:
        """The value of some JavaScript; of a promise, what it becomes."""
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, address: str) -> None:
        """Load a page, from nothing, and wait until it is there."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        loaded = (
            "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', () => done()))"
        )
        self.run(loaded)

    def show(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Set the size of the window, and whether the system is dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")

    def press(self, key: str, code: int) -> None:
        """A key down and up."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self) -> bytes:
        """The whole page, as a PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._read], [], [], 60)
            more = os.read(self._read, 1 << 16) if ready else b""
            assert more, "the browser has ended, or says nothing"
            self._left += more
        text, self._left = self._left.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        if message.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(message["params"]))
        return message
