"""The notebook of the examples runs to its last cell, and is stored as its source was executed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient
from waiting import LIMIT_S

FOLDER = Path(__file__).parents[2] / "examples" / "notebook"
RECURRENCES = 3


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The source, executed with few and short recurrences."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = jupytext.read(FOLDER / "digits.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOTEBOOK_RECURRENCES", str(RECURRENCES))
        patch.setenv("NOTEBOOK_TARGET", "0.9")
        patch.setenv("TMPDIR", str(folder))
        client = NotebookClient(
            notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(folder)}}
        )
        client.execute()
    return notebook


@pytest.fixture(scope="module")
def stored() -> Any:
    return nbformat.read(FOLDER / "digits.ipynb", as_version=4)


def assert_it_tells_the_story(notebook: Any, recurrences: int) -> None:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}  # no warning
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    printed = "".join(output.get("text", "") for output in outputs)
    rows = re.findall(r"^ *(\d+) +(\d+) +([a-z_]+) +\d+ +([\d.]+)  ", printed, re.MULTILINE)
    ended = [int(run) for run, _, outcome, _ in rows if outcome == "converged"]
    assert ended == list(range(1, recurrences + 1))
    assert all(float(energy_j) > 0 for _, _, _, energy_j in rows)
    tried = {int(size) for _, size, _, _ in rows}
    assert 128 in tried  # the default
    (best,) = re.findall(r"The best batch size so far is (\d+)", printed)
    assert int(best) in {8, 16, 32, 64, 128, 256, 512}
    ((spent, saved, low, high),) = re.findall(
        r"cost (\d+) J, and saved (-?\d+) J.*\n\(95 % interval: (-?\d+) to (-?\d+) J\)",
        printed,
    )
    assert int(spent) == pytest.approx(sum(float(row[3]) for row in rows), abs=1 + 0.05 * len(rows))
    assert int(low) <= int(saved) <= int(high)


def test_every_cell_runs_and_every_recurrence_reaches_the_target(executed: Any) -> None:
    assert_it_tells_the_story(executed, RECURRENCES)


def test_what_is_stored_is_the_source_executed(stored: Any) -> None:
    source = jupytext.read(FOLDER / "digits.py")
    assert [cell.source for cell in stored.cells] == [cell.source for cell in source.cells]
    assert_it_tells_the_story(stored, recurrences=12)
