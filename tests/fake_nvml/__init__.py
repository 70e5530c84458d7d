"""A GPU driver for tests: a fake `libnvidia-ml.so.1` beneath the real nvidia-ml-py."""

from fake_nvml.driver import FakeDriver, FakeGpu, fail_elsewhere

__all__ = ["FakeDriver", "FakeGpu", "fail_elsewhere"]
