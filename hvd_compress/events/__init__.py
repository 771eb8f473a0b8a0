"""What happened to a run's buckets, when and why: remembered, written down, and drawn."""
