"""Reports of a run: gathers what its folder tells, and draws it on a page. No network."""
