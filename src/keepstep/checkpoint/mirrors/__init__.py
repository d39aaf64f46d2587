"""A run's mirrors, as the job sees them: what a resume takes from them, and the processes that fill them."""
