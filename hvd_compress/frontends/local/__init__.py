"""Several optimizer steps between two exchanges."""
