"""`hvd-compress bench`, a module a command."""
