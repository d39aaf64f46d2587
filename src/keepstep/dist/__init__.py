"""The ranks of a job: how they meet, agree and share facts."""
