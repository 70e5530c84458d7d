"""Takes the pictures of the page in `docs/figures`: `make figures`. It needs Debian's Chromium.

The jobs are synthetic, and the same version takes the same pictures.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from sample_jobs import fill
from zeus_service import create_app
from zeus_service.config import Config
from zeus_service.db.migrate import upgrade

FOLDER = Path(__file__).parent / "figures"
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
JOB = "/job/ads-ranking-nightly"
PICTURES = (
    ("page-jobs", "/", "light", 930),
    ("page-job", JOB, "light", 1250),
    ("page-job-dark", JOB, "dark", 1250),
    ("page-run", f"{JOB}/trial/2", "light", 1000),
)
"""Name, address, colour scheme and height of each picture."""
WIDTH = 1280
DRAWN = """() => [...document.querySelectorAll("[data-figure]")].every((place) =>
    place.classList.contains("js-plotly-plot") || place.closest(".empty, details:not([open])"))"""


def main() -> None:
    """Write all pictures."""
    with (
        tempfile.TemporaryDirectory() as folder,
        _service(Path(folder)) as url,
        sync_playwright() as playwright,
    ):
        program = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        for name, path, scheme, height in PICTURES:
            size = {"width": WIDTH, "height": height}
            page = browser.new_page(color_scheme=scheme, viewport=size)
            page.goto(f"{url}{path}")
            _wait_until_drawn(page)
            page.screenshot(path=FOLDER / f"{name}.png")
            page.close()
            print(f"{FOLDER.name}/{name}.png")


def _wait_until_drawn(page: Page) -> None:
    while not page.evaluate(DRAWN):
        page.wait_for_timeout(100)
    page.wait_for_timeout(500)


@contextmanager
def _service(folder: Path) -> Iterator[str]:
    """A service with the sample jobs."""
    database = f"sqlite:///{folder / 'jobs.sqlite3'}"
    app = create_app(Config(database_url=database))
    upgrade(app)
    fill(app)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rates = {
        "ZEUS_BSO_CURRENCY": "EUR",
        "ZEUS_BSO_PRICE_PER_KWH": "0.30",
        "ZEUS_BSO_PRICE_PER_GPU_HOUR": "2.50",
        "ZEUS_BSO_CARBON_INTENSITY": "380",
    }
    environment = {**os.environ, "ZEUS_BSO_DATABASE_URL": database, **rates}
    program = Path(sys.executable).with_name("zeus-service")
    with (folder / "service.log").open("wb") as log:
        command = [program, "serve", f"--bind=127.0.0.1:{port}", "--workers=1"]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            try:
                urllib.request.urlopen(f"{url}/healthz", timeout=10).close()
                break
            except OSError as error:
                if process.poll() is not None:
                    reason = (folder / "service.log").read_text()
                    raise RuntimeError(f"the service did not start:\n{reason}") from error
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
