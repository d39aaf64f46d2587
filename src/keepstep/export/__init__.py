"""Model states outside of checkpoints: safetensors in and out."""
