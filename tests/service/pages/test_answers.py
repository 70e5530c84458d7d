"""Pages and figures are compressed, and are not sent again while they are the same."""

from __future__ import annotations

import gzip

import pytest
from flask.testing import FlaskClient
from service.jobs import register

GZIP = {"Accept-Encoding": "gzip, br"}


@pytest.fixture
def client(client: FlaskClient) -> FlaskClient:
    """A client of an application that has a job."""
    register()
    return client


@pytest.mark.parametrize(
    "address",
    ["/", "/job/job", "/job/job/figures", "/assets/page.css", "/assets/page.js", "/job/x"],
)
def test_an_answer_is_compressed_for_a_client_that_takes_it(
    client: FlaskClient, address: str
) -> None:
    plain, compressed = client.get(address), client.get(address, headers=GZIP)
    assert "Content-Encoding" not in plain.headers
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert compressed.headers["Vary"] == plain.headers["Vary"] == "Accept-Encoding"
    assert gzip.decompress(compressed.data) == plain.data
    assert int(compressed.headers["Content-Length"]) == len(compressed.data)
    tags = [answer.headers.get("ETag") for answer in (plain, compressed)]
    assert tags[0] == tags[1]
    if tags[0]:
        again = client.get(address, headers={**GZIP, "If-None-Match": tags[0]})
        assert (again.status_code, again.data) == (304, b"")
        assert "Content-Encoding" not in again.headers


def test_the_file_of_trials_is_sent_as_it_is_read(client: FlaskClient) -> None:
    answer = client.get("/job/job/trials.csv", headers=GZIP)
    assert answer.is_streamed
    assert "Content-Encoding" not in answer.headers
