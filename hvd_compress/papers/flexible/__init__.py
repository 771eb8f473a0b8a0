"""Compression.flexible(): the controller of Tyagi and Swany, "Flexible Communication"."""
