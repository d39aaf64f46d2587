"""Scores checkpoints beside a job that runs: finds them, holds them, runs what scores them."""
