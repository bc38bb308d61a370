"""Finding out what is fast and safe on this machine: guarded trials, studies, decisions."""
