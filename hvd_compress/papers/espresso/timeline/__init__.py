"""Steps that were traced, and those that a plan predicts: read, and drawn as boxes."""
