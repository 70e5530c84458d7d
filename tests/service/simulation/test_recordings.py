"""Reading recorded runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from service.simulation import recorded
from service.simulation.recorded import POWER, RECIPE, TRAIN
from zeus_service.errors import Unusable
from zeus_service.simulation import recordings


def edit(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")


def without(path: Path, start: str) -> None:
    edit(path, lambda lines: [line for line in lines if not line.startswith(start)])


def the_error(directory: Path, gpu: str = "tiny", recipe: recordings.Recipe = RECIPE) -> str:
    with pytest.raises(Unusable) as caught:
        recordings.read(directory, gpu, recipe)
    return str(caught.value)


def test_what_was_recorded_is_read(traces: Path) -> None:
    read = recordings.read(traces, "tiny", RECIPE)
    expected = recorded.workload()
    assert read.settings.keys() == expected.settings.keys()
    for size, setting in expected.settings.items():
        assert read.settings[size].target_epochs == setting.target_epochs
        for limit, epoch in setting.epochs.items():
            assert read.settings[size].epochs[limit].time_s == epoch.time_s
            assert read.settings[size].epochs[limit].energy_j == pytest.approx(epoch.energy_j)
    assert replace(read, settings=expected.settings) == expected


def test_other_workloads_and_targets_in_the_same_files_do_not_count(traces: Path) -> None:
    with (traces / TRAIN).open("a") as file:
        file.write("letters,net,adam,8,1e-3,1,0.5,1\nletters,net,sgd,8,1e-3,1,0.6,1\n")
    with (traces / POWER).open("a") as file:
        file.write("letters,net,adam,8,100,1.0,1.0\n")
    assert recordings.read(traces, "tiny", RECIPE).settings[8].target_epochs == (5.0, 6.0, 7.0)


def test_maxpower_is_the_largest_limit_in_the_gpus_file(traces: Path) -> None:
    other = "other,net,sgd,8,300,1.0,1.0"
    edit(traces / POWER, lambda lines: [lines[0], other, *lines[1:]])
    assert recordings.read(traces, "tiny", RECIPE).max_power_w == 300.0


def test_the_default_is_at_most_what_the_gpu_holds(traces: Path) -> None:
    read = recordings.read(traces, "tiny", RECIPE._replace(default_batch_size=256))
    assert read.default_batch_size == 32


@pytest.mark.parametrize("name", [TRAIN, POWER])
def test_a_default_without_runs_or_power_data_is_an_error(traces: Path, name: str) -> None:
    without(traces / name, "letters,net,sgd,16,")
    lacks = f"{traces / name} has the batch sizes [8, 32], not the default 16"
    assert lacks in the_error(traces)


def test_a_file_that_is_not_there_is_named(traces: Path) -> None:
    assert "summary_power_a40.csv: cannot be read" in the_error(traces, gpu="a40")
    (traces / TRAIN).unlink()
    assert str(traces / TRAIN) in the_error(traces)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("dataset", "unheard-of", "unheard-of/net/sgd"),
        ("network", "unheard-of", "letters/unheard-of/sgd"),
        ("optimizer", "unheard-of", "letters/net/unheard-of"),
        ("target_metric", 0.9, "letters/net/sgd with the target 0.9"),
    ],
)
def test_what_was_not_recorded_has_no_runs(
    traces: Path, field: str, value: object, told: str
) -> None:
    error = the_error(traces, recipe=RECIPE._replace(**{field: value}))
    assert told in error
    assert f"{traces / TRAIN} has the batch sizes [], not the default 16" in error


def test_a_target_that_is_never_reached_is_told(traces: Path) -> None:
    error = the_error(traces, recipe=RECIPE._replace(max_epochs=4))
    assert error.startswith(f"{traces / TRAIN}: no run of letters")
    assert "reaches the target of 0.5 within 4 epochs" in error


@pytest.mark.parametrize(
    ("name", "column", "text", "wanted"),
    [
        (TRAIN, "batch_size", "1.5", "a valid integer"),
        (TRAIN, "target_metric", "nan", "a finite number"),
        (POWER, "average_power", "1e200", "less than or equal to"),
    ],
)
def test_an_invalid_number_is_reported_with_its_row(
    traces: Path, name: str, column: str, text: str, wanted: str
) -> None:
    def spoil(lines: list[str]) -> list[str]:
        values = lines[2].split(",")
        values[lines[0].split(",").index(column)] = text
        return [*lines[:2], ",".join(values), *lines[3:]]

    edit(traces / name, spoil)
    error = the_error(traces)
    assert error.startswith(f"{traces / name}, row 3, {column}")
    assert f"Input should be {wanted}" in error
    assert error.endswith(f"({text!r})")


def test_the_published_files_hold_the_papers_workloads(published_traces: Path) -> None:
    assert recordings.gpus(published_traces) == ["p100", "v100"]
    recipes = recordings.paper_recipes(published_traces, "v100")
    assert [each.dataset for each in recipes] == ["cifar100", "librispeech", "sentiment140"]
    defaults = {
        (gpu, each.dataset): recordings.read(published_traces, gpu, each).default_batch_size
        for gpu in ("p100", "v100")
        for each in recipes
    }
    assert defaults == {
        ("p100", "cifar100"): 1024,
        ("p100", "librispeech"): 72,
        ("p100", "sentiment140"): 64,
        ("v100", "cifar100"): 1024,
        ("v100", "librispeech"): 192,
        ("v100", "sentiment140"): 128,
    }


def test_a_byte_order_mark_and_blanks_do_not_count(traces: Path) -> None:
    expected, path = recordings.read(traces, "tiny", RECIPE), traces / TRAIN
    edit(path, lambda lines: [line.replace("letters,net,", " letters , net ,") for line in lines])
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert recordings.read(traces, "tiny", RECIPE) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"dataset,network\na,b\n", ", row 2, optimizer: Field required"),
        (b"dataset,network\na\n", ", row 2, network: Input should be"),
        (b"\xff\xfe\x00", ": cannot be read as CSV"),
    ],
)
def test_an_invalid_file_is_reported(traces: Path, content: bytes, message: str) -> None:
    (traces / TRAIN).write_bytes(content)
    assert the_error(traces).startswith(f"{traces / TRAIN}{message}")
