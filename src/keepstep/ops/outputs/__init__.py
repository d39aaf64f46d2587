"""Looks at, verifies and merges the output parts of an inference job."""
