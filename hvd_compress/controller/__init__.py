"""Which choice, now? Collective and ratio of every bucket, from what the engine was measured to do."""
