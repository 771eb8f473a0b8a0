"""Measuring: our figure, the floor and the peer, from one run."""
