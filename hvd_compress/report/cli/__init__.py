"""`hvd-compress report`."""
