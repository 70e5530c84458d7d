"""The service, always few requests at a time, and a route that tells how many are under way."""

import time
from threading import Lock

from flask import request
from zeus_service import create_app, turns
from zeus_service.config import load_config

turns.WINDOW_S = 60
app = create_app(load_config())
changing = Lock()
under_way = 0


@app.post("/under-way")
def count() -> str:
    """How many requests are being answered, this one included."""
    global under_way
    request.get_data()
    with changing:
        under_way += 1
        seen = under_way
    time.sleep(0.005)
    with changing:
        under_way -= 1
    return str(seen)
