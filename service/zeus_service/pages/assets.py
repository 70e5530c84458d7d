"""The pages' own files and plotly's JavaScript, which browsers may keep: addresses name a version.

Everything is read in the process that starts the workers, or opened there: a worker's user may be
unable to enter these folders. Plotly's file is compressed when it is first asked for.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

PLOTLY = "plotly.js"
TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def _own() -> dict[str, bytes]:
    folder = files("zeus_service.pages") / "static"
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def _open_plotly() -> int:
    """A file descriptor of the JavaScript in the package `plotly`, without importing that."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise ImportError("the package plotly is not installed: pip install plotly")
    return os.open(Path(spec.origin).parent / "package_data" / "plotly.min.js", os.O_RDONLY)


OWN = _own()
_plotly = _open_plotly()
_VERSIONS = {name: hashlib.sha256(content).hexdigest()[:12] for name, content in OWN.items()}
_VERSIONS[PLOTLY] = version("plotly")


def address(name: str) -> str:
    """The address of a file, which changes with its content."""
    return f"/assets/{_VERSIONS[name]}/{name}"


def is_current(name: str, version: str) -> bool:
    """Whether a file exists, in this version."""
    return _VERSIONS.get(name) == version


def plotly() -> bytes:
    """Plotly's JavaScript: 5 MB."""
    return os.pread(_plotly, os.fstat(_plotly).st_size, 0)


@functools.cache
def compressed_plotly() -> bytes:
    """The same by gzip: 1.5 MB."""
    return gzip.compress(plotly(), compresslevel=6, mtime=0)
