"""Build the fake `libamd_smi.so`."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
from pathlib import Path

from fake_nvml import FakeGpu

SOURCE = Path(__file__).with_name("fake_amdsmi.c")
_SYMBOL = re.compile(r"_libraries\['libamd_smi\.so'\]\.(\w+)")


def build(rocm: Path) -> None:
    """Build the library as `rocm/lib/libamd_smi.so`, where `$ROCM_PATH` leads amdsmi to it.

    amdsmi needs every function of the library as it is imported. Those that this project does not
    call return AMDSMI_STATUS_NOT_SUPPORTED.
    """
    specification = importlib.util.find_spec("amdsmi")  # does not import it
    assert specification is not None
    assert specification.origin is not None
    wrapper = Path(specification.origin).with_name("amdsmi_wrapper.py").read_text()
    own = set(re.findall(r"^int (amdsmi_\w+)\(", SOURCE.read_text(), re.MULTILINE))
    others = sorted(set(_SYMBOL.findall(wrapper)) - own)
    stubs = rocm / "others.c"
    stubs.write_text("".join(f"int {name}(void) {{ return 2; }}\n" for name in others))
    (rocm / "lib").mkdir()
    library = rocm / "lib" / "libamd_smi.so"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    options = ["-std=c11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"]
    subprocess.run(
        [*compiler, *options, "-o", library, SOURCE, *_visible(stubs), "-lm"], check=True
    )


def _visible(source: Path) -> list[str]:
    source.write_text("#pragma GCC visibility push(default)\n" + source.read_text())
    return [str(source)]


def uuid_of(gpu: FakeGpu) -> str:
    """What this project calls a GPU of the fake driver that AMD SMI shows."""
    return f"AMD-{gpu.uuid.removeprefix('GPU-')}"
