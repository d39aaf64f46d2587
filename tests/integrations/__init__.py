"""With the libraries and models that people use."""
