"""Recommendation models, and batches for them: from Criteo's files, a generator, or Debian's package index."""
