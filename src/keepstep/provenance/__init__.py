"""What identifies a run: collected at its start, written beside every checkpoint as run.json."""
