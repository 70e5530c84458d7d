"""Build the fake driver's shared library, and load it."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
SONAME = "libnvidia-ml.so.1"


def build(directory: Path) -> Path:
    """Build the fake driver as `directory/libnvidia-ml.so.1`.

    Raises:
        RuntimeError: There is no C compiler, or it failed.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        raise RuntimeError(
            f"the tests need a C compiler to build their GPU driver and {compiler[0]!r} is not on "
            "the PATH: install gcc or clang, or name one in $CC"
        )
    library = directory / SONAME
    options = ["-std=c11", "-O1", "-shared", "-fPIC"]
    done = subprocess.run(
        [*compiler, *options, f"-Wl,-soname,{SONAME}", "-o", library, SOURCE, "-lm"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the tests' GPU driver does not build:\n{done.stderr}")
    return library


def load(library: Path) -> None:
    """Load the driver into this process, where nvidia-ml-py will find it by its soname."""
    ctypes.CDLL(str(library))
