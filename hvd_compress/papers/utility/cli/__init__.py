"""`hvd-compress whatif`."""
