"""Drives the installed Chromium, headless, by Playwright: for tests of pages, and for pictures of them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

from playwright.sync_api import ConsoleMessage, Error, sync_playwright

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# Its sandbox needs rights that containers lack; a page of ours is all that it opens.
ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage", "--no-proxy-server")
# After so long it hangs.
PATIENCE_MS = 60_000
# Between two checks of a page that has to change.
PAUSE_MS = 20


class PageError(AssertionError):
    """The page is not as expected."""


class Browser:
    """One Chromium with one page. Use it as a context manager."""

    def __init__(self, width: int = 1280, height: int = 800) -> None:
        self._size = (width, height)
        self.errors: list[str] = []  # errors of the page, and errors in its console

    def __enter__(self) -> Browser:
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            raise PageError(
                "Chromium is missing: apt-get install chromium-headless-shell (make setup does, as root)"
            )
        self._playwright = sync_playwright().start()
        self._chromium = self._playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        self._page = self._chromium.new_page(locale="en-US")
        self._page.set_default_timeout(PATIENCE_MS)
        self._page.on("pageerror", lambda error: self.errors.append(str(error)))
        self._page.on("console", self._hear)
        self._protocol = self._page.context.new_cdp_session(self._page)
        self.resize(*self._size)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._chromium.close()
        self._playwright.stop()

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} {message.location['url']}")

    def command(self, name: str, **params: Any) -> None:
        """Send a command of the DevTools protocol."""
        self._protocol.send(name, params)

    def resize(self, width: int, height: int) -> None:
        self._page.set_viewport_size({"width": width, "height": height})

    def prefer(self, scheme: str) -> None:
        """Emulate a system that prefers the colour scheme `scheme`: light or dark."""
        self._page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")

    def open(self, url: str) -> None:
        self._page.goto(url)

    def reload(self) -> None:
        self._page.reload()

    def js(self, expression: str) -> Any:
        """Evaluate an expression; promises are awaited. Raises playwright.sync_api.Error if it throws."""
        return self._page.evaluate(expression)

    def until(self, expression: str, what: str) -> Any:
        """Wait until an expression is true, and return its value. While it throws, it counts as false."""
        last_error = ""
        for _ in range(PATIENCE_MS // PAUSE_MS):
            try:
                if value := self.js(expression):
                    return value
            except Error as error:
                last_error = str(error)
            self._page.wait_for_timeout(PAUSE_MS)
        raise PageError(f"not in time: {what}. The page:\n{self.text()[:2000]}\n{self.errors} {last_error}")

    def text(self, selector: str = "body") -> str:
        return str(self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def sees(self, text: str, selector: str = "body") -> None:
        shown = f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"
        self.until(f"({shown}).includes({json.dumps(text)})", f"{text!r} is shown in {selector}")

    def click(self, selector: str, text: str = "") -> None:
        """Click the first visible element of `selector` that contains `text`, once nothing covers it."""
        with_text = re.compile(re.escape(text)) if text else None
        self._page.locator(selector, has_text=with_text).filter(visible=True).first.click()

    def write(self, text: str) -> None:
        self._page.keyboard.insert_text(text)

    def fill(self, selector: str, text: str) -> None:
        self._page.locator(selector).filter(visible=True).first.fill(text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select, by its value."""
        self._page.select_option(selector, value)

    def press(self, key: str) -> None:
        self._page.keyboard.press(key)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture (PNG) of the viewport, or of the whole page."""
        self._page.screenshot(path=path, full_page=whole)
