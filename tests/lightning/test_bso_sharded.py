"""A module whose weights are sharded over two ranks (`fully_shard`, gloo), and its checkpoints."""

from __future__ import annotations

from pathlib import Path

from programs import trials
from ranks import run_ranks, seen
from service_process import ServiceProcess

SCRIPT = Path(__file__).with_name("train_sharded.py")


def test_a_sharded_run_is_measured_resumed_from_its_shards_and_followed_by_another(
    service: ServiceProcess, tmp_path: Path
) -> None:
    assert run_ranks(tmp_path, {"sharded": service.url}, script=SCRIPT) == 0
    # of the three that were started, the second was withdrawn when the checkpoint was loaded
    first, withdrawn, third = trials(service.url, "sharded")
    assert [each["outcome"] for each in (first, withdrawn, third)] == [
        "converged",
        "withdrawn",
        "converged",
    ]
    assert first["epoch"] == 3
    assert first["energy_j"] == third["energy_j"]  # what was spent before the error counts
    ranks = seen(tmp_path, "sharded")
    for failed, resumed, other in ranks:
        assert failed["is_sharded"]
        assert (failed["error"], failed["outcome"]) == ("mine", "errored")
        assert (resumed["trial"], resumed["outcome"]) == (1, "converged")
        assert (other["trial"], other["outcome"]) == (3, "converged")
        assert failed["batch_lengths"] == resumed["batch_lengths"] == [first["batch_size"] // 2]
        assert other["batch_lengths"] == [third["batch_size"] // 2]
    assert [rank[1]["cost"] for rank in ranks] == [first["cost"]] * 2
