"""What a run's folder tells of the run: pure decisions about what to show, and in which words."""
