"""Compressors of the literature that lead no column of the results: to compare others with."""
