"""A trial in the process that trains it: its start, reports, checkpoints and end."""
