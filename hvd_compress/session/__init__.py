"""From full buckets to their results, step by step: what all front ends share."""
