"""Files have addresses with their version, and may be kept."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from zeus_service import create_app
from zeus_service.config import Config
from zeus_service.pages import assets


@pytest.mark.parametrize("name", [*assets.OWN, assets.PLOTLY])
def test_a_file_may_be_kept_for_a_year(tmp_path: Path, name: str) -> None:
    client = create_app(Config(database_url=f"sqlite:///{tmp_path / 'none'}")).test_client()
    answer = client.get(assets.address(name))
    assert answer.status_code == 200
    assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert answer.mimetype in assets.TYPES.values()
    if name == assets.PLOTLY:
        packed = client.get(assets.address(name), headers={"Accept-Encoding": "gzip"})
        assert packed.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed.data) == answer.data
        assert len(packed.data) < len(answer.data) / 3
