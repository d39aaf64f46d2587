"""What a checkpoint holds: the parts of a job's state, each under global names."""
