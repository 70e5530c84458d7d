"""No page of another origin starts a trial by way of a browser."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import sync_playwright
from proxy import QuietHTTPServer
from service.api.wires import Wire, zeus_job
from service.pages.conftest import ARGUMENTS, CHROMIUM
from service_process import ServiceProcess
from waiting import LIMIT_S, wait_until

TAGS = {
    "an image": "<img src='{}'>",
    "an image without a referrer": "<img referrerpolicy=no-referrer src='{}'>",
    "a script": "<script src='{}'></script>",
    "a script without a referrer": "<script referrerpolicy=no-referrer src='{}'></script>",
    "a style": "<link rel=stylesheet referrerpolicy=no-referrer href='{}'>",
    "a frame": "<iframe referrerpolicy=no-referrer src='{}'></iframe>",
    "a fetch": "<script>fetch('{}', {{mode: 'no-cors', referrerPolicy: 'no-referrer',"
    "headers: {{'Accept': '*/*', 'Accept-Language': '*'}}}})</script>",
    "a redirect": "<meta http-equiv=refresh content='0;url={}'>",
}
"""Each on a page of another site."""


@pytest.fixture(scope="module")
def page_of_another_site() -> Iterator[int]:
    """The port of a web server; it serves the page that its path's number names."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            if self.path[1:].isdigit():
                tag = [*TAGS.values()][int(self.path[1:])]
                self.wfile.write(tag.format(self.server.target).encode())

        def log_message(self, *_arguments: Any) -> None:
            """Keep stderr clean."""

    with QuietHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_no_page_of_another_site_starts_a_trial(page_of_another_site: Any, tmp_path: Path) -> None:
    """By a name and without TLS: there Chromium sends no Sec-Fetch-Site."""
    if CHROMIUM is None:
        pytest.skip("no Chromium: install Debian's package chromium")
    with (
        ServiceProcess(tmp_path, ZEUS_BSO_INSECURE="1") as service,
        sync_playwright() as playwright,
    ):
        wire = Wire(service.url)
        assert wire("POST", "/jobs", zeus_job()).status_code == 201
        path = "/jobs/batch_size?job_id=zeus-job"
        page_of_another_site.target = f"http://zeus.test:{service.port}{path}"
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[*ARGUMENTS, "--host-resolver-rules=MAP *.test 127.0.0.1"],
        )

        def asked() -> int:
            return service.log.read_text().count("route=/jobs/batch_size")

        page = browser.new_page()
        for number, name in enumerate(TAGS):
            page.goto(f"http://evil.test:{page_of_another_site.server_port}/{number}")
            wait_until(lambda number=number: asked() > number, service.log.read_text)
            assert wire.outcomes("zeus-job") == [], name
        browser.close()
        named = {"Host": f"zeus.test:{service.port}"}
        assert requests.get(service.url + path, headers=named, timeout=LIMIT_S).ok
