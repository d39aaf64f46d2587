"""Tools with which users test their own jobs."""
