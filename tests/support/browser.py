"""A real browser, headless, and the pages that it shows."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@dataclass
class Browser:
    """Chromium with nothing of its user's. As root it runs only without its sandbox."""

    chromium: Any
    complaints: list[str] = field(default_factory=list)  # errors, warnings, requests that failed

    def open(self, page: Path, place: str = "", **options: Any) -> Any:
        """A new tab with the page, once it has drawn something. `options` as playwright's
        `new_context` takes them."""
        tab = self.chromium.new_context(**options).new_page()
        tab.on("console", lambda message: self.complaints.append(message.text))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("requestfailed", lambda request: self.complaints.append(request.url))
        tab.set_default_timeout(20_000)
        tab.goto(page.as_uri() + place)
        tab.wait_for_selector("#main .results > *", state="attached")
        return tab


@contextmanager
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield Browser(chromium)
        chromium.close()
