"""What was not sent, remembered."""
