"""The table and the CSV file of a simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from zeus_service.simulation.experiment import Key, Tally
from zeus_service.simulation.result_tables import print_table

TALLY = Tally(
    key=Key("sentiment140", "rtx6000", "zeus"),
    seed=7,
    costs=(1.5,) * 30 + (0.5,) * 10,
    oracle_costs=(1.0,) * 40,
    energy_j=5.0,
    default_energy_j=10.0,
    time_s=11.0,
    default_time_s=10.0,
    failed=2,
    unreached=0,
    none_left=False,
    final=(2048,) * 10,
)


def dearer(by: float) -> Tally:
    return replace(TALLY, seed=8, costs=tuple(cost + by for cost in TALLY.costs), failed=3)


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_policies_stand_under_their_workload_within_eighty_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = replace(TALLY, key=TALLY.key._replace(policy="a-policy-of-some-name"), final=())
    print_table([TALLY, dearer(0.1), other])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    workload, zeus, another = (line.split() for line in lines[3:6])
    assert workload == ["sentiment140", "rtx6000"]
    assert zeus == ["zeus", "1.300±.050", "1.550", "0.50", "1.10", "2.5", "2048", "100%"]
    # One replay has no error.
    assert another == ["a-policy-of-some-name", "1.250", "1.500", "0.50", "1.10", "2.0", "-"]


def test_a_replay_without_a_batch_size_left_counts_for_no_ratio(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = replace(dearer(9.0), unreached=1, none_left=True)
    print_table([TALLY, gone, replace(gone, key=TALLY.key._replace(policy="other"))])
    output = capsys.readouterr().out
    zeus, other = (line.split() for line in output.splitlines()[4:6])
    assert zeus[:2] == ["zeus", "1.250"]
    assert other[:3] == ["other", "gave", "up"]
    legend = " ".join(output.split())
    assert "rtx6000 with zeus: recurrences that never reached the target: 1" in legend
    assert "replays that gave up and are left out: 1 of 2" in legend
    assert "replays that gave up and are left out: 1 of 1" in legend
