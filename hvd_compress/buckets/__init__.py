"""Which gradients travel together, and in which order on every rank."""
