"""A real browser for the tests: Debian's Chromium, headless, driven by playwright.

In: a model folder. Out: the explore page of that folder, served on loopback, in a tab that notes every request and
every complaint of the browser. Nothing is downloaded: the browser is the one that is installed.
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
    """The installed browser; without one, tests are skipped, and in CI they fail."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        tell = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        tell("no Chromium here; install one, on Debian: apt-get install chromium fonts-noto-cjk")
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
    """A tab of the browser that remembers what it asked for and what went wrong."""

    def __init__(self, browser: Any, width: int = 1280, height: int = 900, **having: Any):
        self.context = browser.new_context(viewport={"width": width, "height": height}, **having)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "console",
            lambda message: (
                self.complaints.append(message.text)
                if message.type in ("error", "warning")
                else None
            ),
        )

    def open(self, address: str) -> Any:
        """The page, once its first view stands."""
        self.page.goto(address)
        self.page.wait_for_selector("#view > *", timeout=120_000)
        return self.page

    def close(self) -> None:
        self.context.close()

    def left_loopback(self) -> list[str]:
        """Requests that went to another machine."""
        return [
            url
            for url in self.requests
            if urlparse(url).scheme in ("http", "https", "ws", "wss")
            and urlparse(url).hostname != "127.0.0.1"
        ]


@contextmanager
def tab(browser: Any, address: str, **having: Any) -> Iterator[Any]:
    """A page that, when it is closed, must have made no complaint and no request to another machine."""
    one = Tab(browser, **having)
    try:
        yield one.open(address)
        assert one.complaints == []
        assert one.left_loopback() == []
    finally:
        one.close()


def until(page: Any, expression: str, seconds: float = 120) -> Any:
    """What a JavaScript expression gives once it is truthy; the page's policy forbids playwright's own way of waiting."""
    end = time.monotonic() + seconds
    while not (value := page.evaluate(expression)):
        assert time.monotonic() < end, f"still not: {expression}"
        time.sleep(0.02)
    return value
