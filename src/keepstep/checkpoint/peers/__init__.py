"""Each host saves to a folder of its own, and keeps a copy of the files of another host's ranks."""
