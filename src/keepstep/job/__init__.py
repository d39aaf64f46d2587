"""Whole jobs from a configuration: training and inference."""
