"""keepstep inside other trainers."""
