"""The save path, the resume path, and the facade over both."""
