"""Benchmarks: a folder a subject, on one frame; `python -m benchmarks.FOLDER.SCRIPT` from the root of the checkout."""
