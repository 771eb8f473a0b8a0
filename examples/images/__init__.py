"""The parts of the example that are not about Horovod: data, network, progress display, bookkeeping, demo."""
