"""Samples in an order that does not depend on the world, and positions that survive any stop."""
