"""Output parts of an inference job: formats, the index, the folder."""
