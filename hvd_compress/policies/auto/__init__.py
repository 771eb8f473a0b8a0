"""Compression.auto(): which of the whole family makes training fastest, by few real steps."""
