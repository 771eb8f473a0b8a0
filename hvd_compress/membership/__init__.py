"""Who is in a job whose ranks come and go: decided in one place, by the launcher's process, and told to all."""
