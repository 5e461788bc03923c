"""Browser tests: the installed Chromium, headless, driven by playwright.

The explore page is served on loopback; a tab records every request and every console error.
"""

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"


def find_chromium() -> str:
    """The installed browser; without one, tests are skipped, in CI they fail."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        stop = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        stop("no Chromium; install one, on Debian: apt-get install chromium fonts-noto-cjk")
    return str(found)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser with a new, empty profile."""
    path = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, headless=True, args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of a web application that runs in a thread of this process."""
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)


class Tab:
    """A browser tab that records its requests and console errors."""

    def __init__(self, browser: Any, width: int = 1280, height: int = 900, **options: Any):
        self.context = browser.new_context(viewport={"width": width, "height": height}, **options)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console",
            lambda message: (
                self.errors.append(message.text) if message.type in ("error", "warning") else None
            ),
        )

    def open(self, address: str) -> Any:
        """The page, once its first view is drawn."""
        self.page.goto(address)
        self.page.wait_for_selector("#view > *", timeout=120_000)
        return self.page

    def close(self) -> None:
        self.context.close()

    def left_loopback(self) -> list[str]:
        """Requests to another machine."""
        return [
            url
            for url in self.requests
            if urlparse(url).scheme in ("http", "https", "ws", "wss")
            and urlparse(url).hostname != "127.0.0.1"
        ]


@contextmanager
def tab(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """A page; on closing, there must be no console error and no request to another machine."""
    opened = Tab(browser, **options)
    try:
        yield opened.open(address)
        assert opened.errors == []
        assert opened.left_loopback() == []
    finally:
        opened.close()


def until(page: Any, expression: str, seconds: float = 120) -> Any:
    """The value of a JavaScript expression once it is truthy.

    The page's content security policy forbids playwright's own wait_for_function.
    """
    end = time.monotonic() + seconds
    while not (value := page.evaluate(expression)):
        assert time.monotonic() < end, f"still not: {expression}"
        time.sleep(0.02)
    return value


def ask(page: Any, text: str) -> None:
    """Type a text and wait until the page shows it."""
    page.fill("textarea[name=text]", text)
    page.click(".text-form .main")
    until(page, "!document.querySelector('#view').classList.contains('busy')")


def unfold(page: Any) -> None:
    """Open every card of the experiments view and wait for its content."""
    page.evaluate(
        "document.querySelectorAll('[data-card]').forEach((card) => { card.open = true; })"
    )
    until(
        page,
        "[...document.querySelectorAll('[data-card] > .card-content')]"
        ".every((content) => content.textContent !== '…')",
    )
