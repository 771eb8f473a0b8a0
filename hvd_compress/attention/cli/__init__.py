"""`hvd-compress chai`, one file a command."""
