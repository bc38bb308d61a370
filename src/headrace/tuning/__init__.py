"""What to change, and what it would bring: the doctor; studies and search."""
