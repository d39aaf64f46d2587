"""Copies checkpoints to storage that survives, beside a job or by hand."""
