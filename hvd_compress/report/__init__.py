"""How buckets travelled, and why: a log as a picture and a table."""
