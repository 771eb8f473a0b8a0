"""`hvd-compress netlab`."""
