"""Finding out what limits, what is fast and what is safe: guarded trials, studies, the doctor."""
