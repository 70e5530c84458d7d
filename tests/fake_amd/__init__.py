"""A driver of AMD GPUs for tests: a fake `libamd_smi.so` beneath AMD's own Python library."""

from fake_amd.library import build, uuid_of

__all__ = ["build", "uuid_of"]
