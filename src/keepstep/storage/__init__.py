"""Bytes under names, durably: files, digests, and what lies in a run's folder. No torch."""
