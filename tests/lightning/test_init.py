"""`import zeus_lightning` is cheap."""

from __future__ import annotations

import os
from pathlib import Path

from scripts import ScriptProcess

SCRIPT = """
import sys
before = set(sys.modules)
assert "lightning.pytorch" in before
from zeus_lightning import ZeusBSOCallback
print(*(m for m in set(sys.modules) - before if not m.startswith("zeus_lightning")))
print(*(m for m in sys.modules if "power" in m and m.startswith("zeus_lightning")))
"""


def test_importing_the_package_loads_nothing_that_lightning_has_not_loaded(tmp_path: Path) -> None:
    script, output, errors = (tmp_path / name for name in ("script.py", "output", "errors"))
    script.write_text(SCRIPT)
    assert ScriptProcess(script, [], os.environ, output, errors).wait() == 0, errors.read_text()
    assert output.read_text().split() == []
