"""Guests, each a paper: what its own folder holds can be taken away (`hvd_compress/guests.py`)."""
