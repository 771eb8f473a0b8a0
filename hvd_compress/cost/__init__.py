"""What would it cost? Every formula for bytes and time, and every curve that was measured, each of them once."""
