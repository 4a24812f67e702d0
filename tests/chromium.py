"""A headless Chromium driven over ``--remote-debugging-pipe``: JSON between NUL bytes on two descriptors."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

import cv2
import numpy as np

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "no Chromium here (package chromium): the page is not tested in a browser"
WAIT = 30.0  # seconds until a test that would hang fails instead
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
_FLAGS += ("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage")
_FLAGS += ("--hide-scrollbars", "--remote-debugging-pipe")
# The browser wants its pipe at 3 and 4. Between fork and exec ``subprocess`` may use those for itself, hence a step
# between: it also makes the browser end with the test, however that ends.
_LAUNCH = """
import ctypes, fcntl, os, signal, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
for end in ends:
    os.close(end)
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execv(sys.argv[3], sys.argv[3:])
"""


class BrowserError(Exception):
    """The browser refused a command, or did not answer."""


class ScriptError(BrowserError):
    """An expression threw; often because the page is not that far yet."""


class Browser:
    """Starts Chromium with a profile in ``folder``; use as a context manager.

    Attributes:
        events: (session, method, parameters) of everything that was reported so far.
    """

    def __init__(self, folder):
        self._folder = str(folder)
        self.events = []
        self._number = 0
        self._buffer = b""

    def __enter__(self):
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        log = open(os.path.join(self._folder, "chromium.log"), "wb")
        command = [sys.executable, "-c", _LAUNCH, str(commands), str(answers)]
        command += [CHROMIUM, *_FLAGS, "--user-data-dir=" + self._folder, "about:blank"]
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=(commands, answers),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            for descriptor in (commands, answers):
                os.close(descriptor)
            log.close()
        return self

    def __exit__(self, *_):
        with contextlib.suppress(BrowserError, OSError):
            self.call("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def call(self, method, session=None, **parameters):
        """The answer to one command; events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode("utf-8") + b"\0")
        until = time.monotonic() + WAIT
        while True:
            answer = self._receive(until - time.monotonic())
            if answer is None:
                raise BrowserError(f"{method}: no answer")
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError("{}: {}".format(method, answer["error"].get("message")))
                return answer["result"]

    def _receive(self, timeout):
        """The next message, None on time-out; an event is added to ``events``, too."""
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, timeout))[0]:
                return None
            part = os.read(self._in, 1 << 20)
            if not part:
                raise BrowserError("the browser is gone")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.events.append((message.get("sessionId"), message["method"], message["params"]))
        return message

    def page(self, url, width=1280, height=800, mobile=False, dark=False):
        """A new tab that has been sent to ``url``."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, target, session, url, width, height, mobile, dark)


class Page:
    """One tab."""

    def __init__(self, browser, target, session, url, width, height, mobile, dark):
        self._browser, self._target, self._session = browser, target, session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if mobile else 1,
            mobile=mobile,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)

    def call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression):
        """The value of a JavaScript expression (a promise is awaited)."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise ScriptError(answer["exceptionDetails"].get("exception", {}).get("description", "?"))
        return answer["result"].get("value")

    def wait(self, expression):
        """Wait until the expression is true; returns its value."""
        until = time.monotonic() + WAIT
        while True:
            try:
                value = self.evaluate(expression)
            except ScriptError as error:
                value, last = None, error
            else:
                last = value
            if value:
                return value
            assert time.monotonic() < until, f"never true in the browser: {expression} ({last!r})"
            time.sleep(0.05)

    def screenshot(self):
        """What is on the screen: (height, width, 3) uint8 BGR."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)

    def problems(self):
        """What the console and the log complained of so far."""
        self.evaluate("0")  # takes in what was reported until now
        found = []
        for session, method, fields in self._browser.events:
            if session != self._session:
                continue
            if method == "Runtime.exceptionThrown":
                found.append("exception: " + json.dumps(fields["exceptionDetails"])[:400])
            elif method == "Runtime.consoleAPICalled" and fields["type"] in ("error", "warning", "assert"):
                found.append("console: " + json.dumps(fields["args"])[:400])
            elif method == "Log.entryAdded" and fields["entry"]["level"] in ("error", "warning"):
                found.append("log: " + fields["entry"]["text"])
        return found

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self._target)
