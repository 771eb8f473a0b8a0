"""`hvd-compress plan` and `bench planner`, one file a command."""
