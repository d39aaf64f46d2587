"""Who scores which checkpoint, and what came of it."""
