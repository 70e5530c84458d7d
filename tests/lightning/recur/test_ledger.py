"""What the driver recorded is there after it was killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from full_disk import full_disk

from zeus_lightning import ZeusConfigError, ZeusError
from zeus_lightning.recur.ledger import Ledger


def test_a_resumed_run_has_the_events_of_the_last_one_but_for_a_torn_line(tmp_path: Path) -> None:
    Ledger(tmp_path, resume=False).append(event="of an older run")
    ledger = Ledger(tmp_path, resume=False)
    ledger.append(event="one")
    with (ledger.folder / "ledger.jsonl").open("a") as file:
        file.write('{"event": "tw')
    with full_disk():  # which costs no other line
        resumed = Ledger(tmp_path, resume=True)
    assert (resumed.folder.name, resumed.events) == ("run-0002", [{"event": "one"}])
    resumed.append(event="three")
    events = [{"event": "one"}, {"event": "three"}]
    assert Ledger(tmp_path, resume=True).events == events


def test_an_event_that_a_full_disk_does_not_take_is_an_error_that_names_the_ledger(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path, resume=False)
    ledger.append(event="one")
    message = r"run-0001/ledger\.jsonl cannot be written: File too large; .* --resume goes on"
    with full_disk(), pytest.raises(ZeusError, match=message):
        ledger.append(event="two")
    assert Ledger(tmp_path, resume=True).events == [{"event": "one"}]


def test_a_run_whose_folder_cannot_be_made_is_not_to_be_resumed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "missing", resume=False)
    with pytest.raises(FileNotFoundError, match="missing/run-0001"):
        ledger.append(event="one")


def test_a_start_that_recorded_nothing_is_not_resumed(tmp_path: Path) -> None:
    Ledger(tmp_path, resume=False).append(event="one")
    (tmp_path / "run-0002").mkdir()  # as a full disk leaves it
    resumed = Ledger(tmp_path, resume=True)
    assert (resumed.folder.name, resumed.events) == ("run-0001", [{"event": "one"}])
    assert Ledger(tmp_path, resume=False).folder.name == "run-0003"


@pytest.mark.parametrize("damage", ["\0\0\0", '{"event": "one"}{"event": "two"}'])
def test_a_damaged_ledger_cannot_be_resumed_and_stops_no_new_run(
    tmp_path: Path, damage: str
) -> None:
    ledger = Ledger(tmp_path, resume=False)
    ledger.append(event="one")
    file = ledger.folder / "ledger.jsonl"
    file.write_text(f"{damage}\n")
    with pytest.raises(ZeusConfigError, match=r"ledger\.jsonl is damaged .* without --resume"):
        Ledger(tmp_path, resume=True)
    torn = f"{damage}\ntorn"
    file.write_text(torn)
    assert Ledger(tmp_path, resume=False).folder.name == "run-0002"
    assert file.read_text() == torn
