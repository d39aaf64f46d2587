"""Bytes under names on storage that may be far away: object stores, mounted folders, the Hub."""
