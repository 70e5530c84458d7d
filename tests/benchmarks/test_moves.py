"""Jobs that change hardware."""

from __future__ import annotations

from benchmarks.moves import cases, device_moves

MOVES = device_moves(range(5))


def test_epochs_depend_on_the_batch_size_alone_and_memory_on_the_devices() -> None:
    more_fit = []
    for move in MOVES:
        fewer, more = sorted((move.first, move.second), key=lambda each: each.max_power_w)
        assert fewer.hardware.key != more.hardware.key
        for size, setting in fewer.settings.items():
            other = more.settings[size]
            assert setting.target_epochs == other.target_epochs
            assert setting.out_of_memory >= other.out_of_memory
            more_fit.append(setting.out_of_memory > other.out_of_memory)
        assert not fewer.settings[fewer.default_batch_size].out_of_memory
    assert any(more_fit)


def test_a_job_moves_there_and_back_or_alternates() -> None:
    found = {case.row: case.experiment for case in cases(MOVES[:1], ["zeus"], [0])}
    workload = found["1 to 2 devices: moving 20"].workload
    devices = [workload.at(recurrence).hardware.num_devices for recurrence in range(80)]
    assert devices == 20 * [1] + 30 * [2] + 30 * [1]
    nightly = found["1 to 2 devices: alternating"].workload
    devices = [nightly.at(recurrence).hardware.num_devices for recurrence in range(60)]
    assert devices == 30 * [1, 2]
