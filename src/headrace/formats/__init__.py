"""How datasets lie on disk: scan them for byte ranges, and turn bytes back into values."""
