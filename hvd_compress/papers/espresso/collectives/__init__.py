"""Collectives that papers compare with flat ones, each run by its name alone."""
