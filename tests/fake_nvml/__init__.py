"""A GPU driver for tests: a fake `libnvidia-ml.so.1` beneath the real nvidia-ml-py."""

from fake_nvml.driver import FakeDriver, FakeGpu

__all__ = ["FakeDriver", "FakeGpu"]
