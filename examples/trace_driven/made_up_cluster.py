"""Write made-up submissions of recurring jobs, in the format of the cluster's that Zeus publishes.

    python examples/trace_driven/made_up_cluster.py FILE.csv DATASET...

Four groups for each data set, of 100 submissions, most of which overlap.
"""

import csv
import sys
from pathlib import Path

from zeus_service.simulation.submissions import synthetic_groups


def main(path: str, *datasets: str) -> None:
    """Write the file."""
    groups = synthetic_groups(list(datasets), seed=0, groups=4 * len(datasets), submissions=100)
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["group", "start_time", "end_time", "dataset", "runtime_ratio"])
        for group in groups:
            for each in group.submissions:
                row = (each.start_s, each.end_s, group.dataset, each.runtime_ratio)
                writer.writerow([group.name, *row])


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
