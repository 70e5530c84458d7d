"""A process group of gloo at the end of a program."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys
import torch
from torch.distributed import is_initialized
from torch.nn.parallel import DistributedDataParallel
from zeus_lightning.run.gloo_at_exit import destroy_gloo_at_exit

def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    model(torch.ones(2, 4)).sum().backward()
    return model

store = torch.distributed.FileStore(sys.argv[2], 1)
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
atexit.register(lambda: print("is left" if is_initialized() else "is destroyed", flush=True))
destroy_gloo_at_exit()
destroy_gloo_at_exit()
"""
ENDS = {
    "model = train()": ("is left", None),  # its exit status may be lost
    "train(); sys.exit(75)": ("is destroyed", 75),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_group_is_destroyed_unless_a_model_still_refers_to_it(
    end: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = tmp_path_factory.mktemp("gloo") / "store"
    command = [sys.executable, "-c", f"{PROGRAM}\n{end}", "end", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    state, status = ENDS[end]
    assert done.stdout.strip() == state, done.stderr
    assert status in (None, done.returncode), done.stderr
