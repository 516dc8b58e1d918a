"""A page in Chromium without a network: what it asks for, how soon it is there, what it shows."""

import io
import shutil
import time
from pathlib import Path
from urllib.parse import urlsplit

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
BLANK = 0.002
"""The share of a page's dots that differ from most, below which it shows nothing."""


def missing() -> str | None:
    """What is missing to open pages."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright"
    return None if any(map(shutil.which, NAMES)) else "chromium"


def open_offline(path: Path, timeout: float = 60.0) -> tuple[str, float | None]:
    """How a page opens without a network, in words; and the seconds until it is there.

    Chromium itself has started before the clock does.
    """
    from playwright.sync_api import Error, sync_playwright

    asked: list[str] = []
    with sync_playwright() as driver:
        executable = next(filter(None, map(shutil.which, NAMES)))
        browser = driver.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
            page = context.new_page()
            page.on("request", lambda request: asked.append(request.url))
            start = time.perf_counter()
            page.goto(path.resolve().as_uri(), timeout=1000 * timeout)
            seconds = time.perf_counter() - start
            page.wait_for_timeout(500)  # for what is drawn after the page has loaded
            shown = _ink(page.screenshot(timeout=1000 * timeout))
        except Error:
            return f"not there after {timeout:.0f} s", None
        finally:
            browser.close()
    hosts = sorted({host for url in asked if (host := urlsplit(url).hostname)})
    words = "blank" if shown < BLANK else "opens"
    return (f"{words}, asks {', '.join(hosts)}" if hosts else words), seconds


def _ink(picture: bytes) -> float:
    """The share of dots that do not have the most common colour."""
    import numpy as np
    from PIL import Image

    dots = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).reshape(-1, 3)
    return 1 - np.unique(dots, axis=0, return_counts=True)[1].max() / len(dots)
