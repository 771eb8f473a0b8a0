"""The command `hvd-compress`, one file a command."""
