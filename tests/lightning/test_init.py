"""`import zeus_lightning` is cheap."""

from __future__ import annotations

import os
import subprocess
import sys


def test_importing_the_package_loads_nothing_that_lightning_has_not_loaded() -> None:
    script = (
        "import sys, lightning; before = set(sys.modules); "
        "from zeus_lightning import ZeusBSOCallback; "
        "print(*(m for m in set(sys.modules) - before if not m.startswith('zeus_lightning'))); "
        "print(*(m for m in sys.modules if 'power' in m and m.startswith('zeus_lightning')))"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    loaded = subprocess.check_output([sys.executable, "-c", script], env=env, text=True)
    assert loaded.split() == []
