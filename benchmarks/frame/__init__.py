"""What all benchmarks share: ranks and the slowest of them, windows in turns, the lab, stores, tables."""
