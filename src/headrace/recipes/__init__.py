"""Training programs on top of headrace: flat, readable, built on its public names only."""
