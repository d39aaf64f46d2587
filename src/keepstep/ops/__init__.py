"""Work on checkpoints from outside a job: list, show, verify, prune. Needs no torch and unpickles nothing."""
