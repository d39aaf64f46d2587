"""PyTorch Distributed Checkpoint folders: planned and written by all ranks, read without general unpickling."""
