"""Front ends: what takes gradients from a framework and gives it results."""
