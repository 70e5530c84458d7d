"""The outcome file: how a run's trial stands, for the program that launched the run."""

import json
import os
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_warn

from zeus_lightning.environment import OUTCOME_FILE
from zeus_lightning.trial.record import TrialRecord


def write_outcome(record: TrialRecord) -> None:
    """Write a trial's record and its cost, as JSON, to the file that $ZEUS_OUTCOME_FILE names.

    The file is replaced as a whole. Without the variable this does nothing; a file that cannot be
    written is a warning.
    """
    name = os.environ.get(OUTCOME_FILE)
    if not name:
        return
    path = Path(name).absolute()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps({**record.to_json(), "cost": record.cost}))
        partial.replace(path)
    except OSError as error:
        rank_zero_warn(f"zeus: ${OUTCOME_FILE} cannot be written: {error}")
