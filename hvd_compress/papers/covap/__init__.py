"""Each shard of a gradient is sent in one of several steps (Sun et al., COVAP)."""
