"""What would it cost? Formulas for bytes and time, each of them once; no tensors, no communication."""
