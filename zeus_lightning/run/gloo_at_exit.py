"""`destroy_gloo_at_exit`: destroy gloo's process group as the program exits."""

from __future__ import annotations

import atexit
import functools
import gc
import sys

import torch


@functools.cache
def destroy_gloo_at_exit() -> None:
    """Destroy the process group at exit, if it is gloo's and no model uses it.

    Lightning does the same with NCCL's. After a collective has returned, a thread of gloo takes
    Python's lock to free a tensor. If the interpreter ends first, that thread aborts the process,
    whose exit status is lost. If the group is destroyed while a DistributedDataParallel still
    refers to it, as in a `finally`, where the exception keeps the model alive, freeing the model
    joins the thread without releasing the lock: both wait for ever. At exit the exception is gone;
    a model of the program's globals is not, and then the group is left alone.
    """
    if torch.distributed.is_available():
        atexit.register(_leave)


def _leave() -> None:
    if not torch.distributed.is_initialized() or torch.distributed.get_backend() != "gloo":
        return
    for name in ("last_exc", "last_value", "last_traceback"):  # an error's frames refer to models
        vars(sys).pop(name, None)
    gc.collect()  # of DistributedDataParallel, which is in reference cycles
    model = torch.nn.parallel.DistributedDataParallel
    # isinstance() reads __class__, too: a proxy may run code for it; a dead weakref.proxy raises.
    if not any(issubclass(type(each), model) for each in gc.get_objects()):
        torch.distributed.destroy_process_group()
