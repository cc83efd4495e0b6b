"""A headless Chromium that tests look at pages with, over its DevTools protocol.

``python -m tests.browser report.html terms-0 docs/terms.png`` makes a picture of one chart of a report.
"""

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: Seconds for anything that the browser is asked, on a busy machine.
PATIENCE = 120


class Browser:
    """``requests``: addresses that the page asked for, but for data in itself; ``complaints``: what it wrote to the
    console, and errors."""

    def __init__(self, folder):
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0",
                 "--no-first-run", "--hide-scrollbars", "--disable-background-networking", "--disable-component-update",
                 f"--user-data-dir={folder}"]  # fmt: skip
        self._process = subprocess.Popen(
            [CHROMIUM, *flags, "about:blank"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._loop = asyncio.new_event_loop()
        self._number, self._socket = 0, None
        self.requests, self.complaints = [], []
        try:
            self._connect(folder / "DevToolsActivePort")
        except BaseException:
            self.close()
            raise

    def _connect(self, told):
        deadline = time.monotonic() + PATIENCE
        while not told.exists() or not told.read_text().split():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"chromium did not start: exit code {self._process.poll()}")
            time.sleep(0.05)
        port = told.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=PATIENCE) as reply:
            (page,) = [target for target in json.load(reply) if target["type"] == "page"]
        self._socket = self._loop.run_until_complete(self._wait(self._open(page["webSocketDebuggerUrl"])))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    async def _open(self, address):
        from tornado.websocket import websocket_connect

        return await websocket_connect(address, max_message_size=1 << 28)

    async def _wait(self, thing):
        return await asyncio.wait_for(thing, PATIENCE)

    def call(self, method, **parameters):
        """The result of a command of the protocol; events before it are kept."""
        return self._loop.run_until_complete(self._wait(self._call(method, parameters)))

    async def _call(self, method, parameters):
        self._number += 1
        await self._socket.write_message(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(await self._socket.read_message())
            if message.get("id") == self._number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self._keep(message)

    def _keep(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests += [u for u in [parameters["request"]["url"]] if not u.startswith("data:")]
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append([a.get("value", a.get("description")) for a in parameters["args"]])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"])
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])

    def open(self, path, width=1280, height=900, dark=False, scripts=True, until="true"):
        """Show a file, and wait ``until`` an expression in it is true."""
        self.requests, self.complaints = [], []
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.scheme(dark)
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + PATIENCE
        while not self.evaluate(f"document.readyState === 'complete' && ({until})"):
            assert time.monotonic() < deadline, (until, self.complaints)
            time.sleep(0.05)

    def scheme(self, dark):
        """What the reader prefers."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def evaluate(self, expression):
        """The value of an expression in the page, as JSON has it."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self, path, clip, scale=1):
        """``clip``: (x, y, width, height) of the page, in its pixels."""
        place = {**dict(zip(("x", "y", "width", "height"), clip, strict=True)), "scale": scale}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=place)["data"]
        path.write_bytes(base64.b64decode(data))

    def picture(self, page, chart, path, width=960):
        """One chart of a report, for documentation, without its words."""
        # so high that the picture needs no other height, by which the page would move
        self.open(page, width, 8000, until="document.documentElement.dataset.drawn !== undefined")
        box = f"document.querySelector('[data-figure={chart}]').getBoundingClientRect()"
        self.screenshot(path, self.evaluate(f"(b => [b.x, b.y, b.width, b.height])({box})"), scale=2)

    def pdf(self, path):
        data = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self):
        if self._socket is not None:
            self._socket.close()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as profile, contextlib.closing(Browser(Path(profile))) as shown:
        shown.picture(Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3]))
