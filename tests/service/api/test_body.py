"""A body costs what its length costs, whatever stands in it."""

from __future__ import annotations

import json
import time

import pytest
from flask import Flask
from service.api.wires import zeus_job
from service.jobs import spec_json
from zeus_service.api.body import MAX_BODY_BYTES

CPU_S = 0.2
"""For a body of 64 KiB, on a slow machine; code that took the square of its keys took a second."""
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("path", "body"), [("/api/v1/jobs", spec_json()), ("/jobs", zeus_job())], ids=["api", "zeus"]
)
def test_many_keys_and_a_repeated_one_cost_no_more_than_other_bytes(
    app: Flask, path: str, body: dict[str, object]
) -> None:
    client = app.test_client()
    assert client.post(path, json=body, headers=JSON).status_code == 201
    keys = "".join(f'"{number:x}":1,' for number in range(7_500))
    text = f'{{{keys}"0":1,{json.dumps(body)[1:]}'
    assert 0.9 * MAX_BODY_BYTES < len(text) < MAX_BODY_BYTES
    began = time.process_time()
    assert client.post(path, data=text, headers=JSON).status_code == 200
    assert time.process_time() - began < CPU_S
