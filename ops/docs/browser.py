"""A headless Chromium for tests and pictures, driven through its own pipe: no port, no driver, no library.

Chromium reads commands of the DevTools protocol from descriptor 3 and answers on 4, each message with a
zero byte behind it (https://chromedevtools.github.io/devtools-protocol). Clicks and keys are those of a user:
they go through the page's layout, so what is covered or not shown cannot be clicked. Playwright would
evaluate expressions by the page's own eval, which the console's content security policy forbids.
"""

from __future__ import annotations

import base64
import fcntl
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# Its sandbox needs rights that containers lack; a page of ours is all that it opens.
ARGUMENTS = """
--headless --no-sandbox --remote-debugging-pipe --disable-gpu --no-first-run --mute-audio
--disable-background-networking --disable-component-update --disable-dev-shm-usage --hide-scrollbars
--disable-extensions --disable-sync --disable-default-apps --no-proxy-server --lang=en-US
"""
READ_BYTES = 1 << 20
# After so long it hangs.
PATIENCE_S = 60
FIRST_FREE_FD = 10
# Between two looks at a page that has to change.
PAUSE_S = 0.02
# The first element that is shown and has a text.
_SHOWN = """((selector, text) => [...document.querySelectorAll(selector)].find(
  (one) => one.getClientRects().length && one.innerText.includes(text)))"""
# Where to click an element; null if something covers it.
_PLACE = """((one) => {
  one.scrollIntoView({block: "center", inline: "center"});
  const box = one.getClientRects()[0];
  const at = [box.x + box.width / 2, box.y + box.height / 2];
  const top = document.elementFromPoint(...at);
  return one.contains(top) || top?.contains(one) ? at : null;
})"""
_CHOOSE = """((one, value) => {
  one.value = value;
  one.dispatchEvent(new Event("change", {bubbles: true}));
})"""
_KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowDown": (40, ""), "ArrowUp": (38, "")}


class PageError(AssertionError):
    """The page is not as it has to be, or Chromium refuses a command."""


class Browser:
    """One Chromium with one page. Use it as a context manager."""

    def __init__(self, width: int = 1280, height: int = 800) -> None:
        self.size = (width, height)
        self.said: list[str] = []  # errors of the page, and what its console wrote as one
        self.last_error = ""
        self._number = 0
        self._rest = b""

    def __enter__(self) -> Browser:
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            raise PageError(
                "Chromium is missing: apt-get install chromium-headless-shell (make setup does, as root)"
            )
        self._profile = tempfile.mkdtemp(prefix="mpbroker-browser-")
        pipes = [os.pipe(), os.pipe()]
        (commands_read, self._commands), (self._answers, answers_write) = pipes
        # Numbers that the two of the program do not overwrite.
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, FIRST_FREE_FD) for fd in (commands_read, answers_write)]
        self._pid = os.posix_spawn(
            program,
            [program, *ARGUMENTS.split(), f"--user-data-dir={self._profile}"],
            os.environ,
            file_actions=[
                *((os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)),
                *((os.POSIX_SPAWN_DUP2, fd, place) for place, fd in enumerate(theirs, 3)),
            ],
            setpgroup=0,
        )
        for fd in (commands_read, answers_write, *theirs):
            os.close(fd)
        self._session = ""
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.command(f"{domain}.enable")
        self.resize(*self.size)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._commands)
        os.close(self._answers)
        shutil.rmtree(self._profile, ignore_errors=True)

    # ---- the protocol

    def command(self, name: str, **params: Any) -> dict[str, Any]:
        """Give a command and return its result. Raises PageError."""
        self._number += 1
        message = {"id": self._number, "method": name, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, msgspec.json.encode(message) + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._hear(answer)
        if "error" in answer:
            raise PageError(f"{name}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while b"\0" not in self._rest:
            if not poll.poll(PATIENCE_S * 1000):
                raise PageError("Chromium does not answer")
            if not (data := os.read(self._answers, READ_BYTES)):
                raise PageError("Chromium has ended")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = msgspec.json.decode(message)
        return found

    def _hear(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.said.append(details.get("exception", {}).get("description") or details["text"])
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.said.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    # ---- what a user does

    def resize(self, width: int, height: int) -> None:
        self.size = (width, height)
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """Set what the system prefers: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def open(self, url: str) -> None:
        self.command("Page.navigate", url=url)
        self.until("document.readyState === 'complete'", "the page is loaded")

    def reload(self) -> None:
        self.command("Page.reload")

    def js(self, expression: str) -> Any:
        """Evaluate an expression; promises are awaited. Raises PageError if it throws."""
        result = self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise PageError(
                f"{expression}: {details.get('exception', {}).get('description', details['text'])}"
            )
        return result["result"].get("value")

    def until(self, expression: str, what: str) -> Any:
        """Wait until an expression is true, and return it. One that throws is not true yet."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := self._value(expression)):
            if time.monotonic() > deadline:
                errors = f"{self.said} {self.last_error}"
                raise PageError(f"not in time: {what}. The page says:\n{self.text()[:2000]}\n{errors}")
            select.poll().poll(PAUSE_S * 1000)
        return value

    def _value(self, expression: str) -> Any:
        try:
            return self.js(expression)
        except PageError as error:
            self.last_error = str(error)
            return None

    def text(self, selector: str = "body") -> str:
        """Return the text that is shown."""
        return str(self.js(f"document.querySelector({_quoted(selector)})?.innerText ?? ''"))

    def sees(self, text: str, selector: str = "body") -> None:
        """Wait until a text is shown."""
        place = f"document.querySelector({_quoted(selector)})?.innerText ?? ''"
        self.until(f"({place}).includes({_quoted(text)})", f"{text!r} is shown in {selector}")

    def click(self, selector: str, text: str = "") -> None:
        """Click what is shown of the first element, or of the first one with a text. Waits for it."""
        found = f"{_SHOWN}({_quoted(selector)}, {_quoted(text)})"
        self.until(f"!!{found}", f"there is {selector} {text!r}")
        place = self.js(f"{_PLACE}({found})")
        if place is None:
            raise PageError(f"{selector} {text!r} is covered by something else")
        for kind in ("mousePressed", "mouseReleased"):
            self.command(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )

    def write(self, text: str) -> None:
        """Write into what has the focus."""
        self.command("Input.insertText", text=text)

    def fill(self, selector: str, text: str) -> None:
        """Click a field, and write into it in place of what it has."""
        self.click(selector)
        self.js(f"document.querySelector({_quoted(selector)}).select()")
        self.write(text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select, by its value."""
        self.until(f"!!document.querySelector({_quoted(selector)})", f"there is {selector}")
        self.js(f"{_CHOOSE}(document.querySelector({_quoted(selector)}), {_quoted(value)})")

    def press(self, key: str) -> None:
        code, text = _KEYS.get(key, (ord(key[0].upper()), key))
        down = "keyDown" if text else "rawKeyDown"
        for kind in (down, "keyUp"):
            self.command(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                **({"text": text} if text and kind == down else {}),
            )

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture (PNG) of what is shown, or of the whole page."""
        width, height = self.size
        if whole:
            tall = int(self.js("document.documentElement.scrollHeight"))
            self.resize(width, max(tall, height))
            self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        data = self.command("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
        self.resize(width, height)


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
