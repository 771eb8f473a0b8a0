"""Collectives that ranks submit by name, each in its own order: as with Horovod, over the engines of this package."""
