"""An AMD GPU's power limit, through AMD's own Python library over the fake one."""

from __future__ import annotations

from contextlib import closing

import pynvml
import pytest
import torch
from fake_amd import uuid_of
from fake_nvml import FakeDriver

from zeus_lightning import ZeusPowerError
from zeus_lightning.power.gpus import Gpus
from zeus_lightning.power.limits import GpuLimit
from zeus_lightning.power.restore import TemporaryLimit, records_folder, restore_all


@pytest.fixture
def uuid(amd_gpus: FakeDriver) -> str:
    """What the meter calls GPU 1, which is limited to 250 W."""
    amd_gpus.gpus[1].limit_mw = 250_000
    return uuid_of(amd_gpus.gpus[1])


def test_it_is_read_and_set_in_milliwatts(amd_gpus: FakeDriver, uuid: str) -> None:
    with closing(GpuLimit(uuid)) as limit:
        assert limit.uuid == uuid
        assert (limit.min_w, limit.max_w) == (100, 300)
        assert limit.read_mw() == 250_000
        limit.check_permission()
        limit.set_mw(150_000)
    assert [gpu.limit_mw for gpu in amd_gpus.gpus] == [300_000, 150_000]


@pytest.mark.parametrize(
    ("kind", "code", "cause", "text"),
    [
        ("set_limit", pynvml.NVML_ERROR_NO_PERMISSION, "no_permission", "run as root$"),
        ("constraints", pynvml.NVML_ERROR_NOT_SUPPORTED, "no_power_control", "use another GPU$"),
        ("set_limit", pynvml.NVML_ERROR_UNKNOWN, "driver", "amd-smi monitor"),
    ],
)
def test_an_error_names_the_gpu_the_cause_and_a_remedy(
    amd_gpus: FakeDriver, uuid: str, kind: str, code: int, cause: str, text: str
) -> None:
    amd_gpus.gpus[1].fail(kind, code)
    with pytest.raises(ZeusPowerError, match=text) as raised, closing(GpuLimit(uuid)) as limit:
        limit.set_mw(200_000)
    assert raised.value.fields == {"cause": cause}
    assert uuid in raised.value.message


def test_what_was_left_set_is_restored(amd_gpus: FakeDriver, uuid: str) -> None:
    with closing(GpuLimit(uuid)) as limit:
        temporary = TemporaryLimit(limit)
        temporary.set_w(150)
        record = (records_folder() / f"{uuid}.json").read_bytes()
        temporary.restore()
    (records_folder() / f"{uuid}.json").write_bytes(record)
    amd_gpus.gpus[1].limit_mw = 150_000
    ((name, finished, message),) = restore_all()
    assert (name, finished) == (uuid, True)
    assert "was restored to 250 W" in message
    assert amd_gpus.gpus[1].limit_mw == 250_000


def test_a_run_sets_the_limits_of_the_gpus_that_its_meter_counts(
    amd_gpus: FakeDriver, uuid: str
) -> None:
    with closing(Gpus("amd:1", torch.device("cpu"))) as gpus:
        gpus.take_control()
        assert gpus.set_w(200)
        assert [gpu.limit_mw for gpu in amd_gpus.gpus] == [300_000, 200_000]
    assert [gpu.limit_mw for gpu in amd_gpus.gpus] == [300_000, 250_000]
    with closing(GpuLimit(1)) as limit:  # NVIDIA's and AMD's names are never mixed up
        assert limit.uuid != uuid
