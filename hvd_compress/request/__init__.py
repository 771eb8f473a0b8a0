"""What was asked for, and what is decided for a bucket."""
