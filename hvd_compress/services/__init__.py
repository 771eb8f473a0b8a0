"""What watches the steps of a session."""
