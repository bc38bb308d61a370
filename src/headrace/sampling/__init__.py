"""Which sample is draw number i: mixture, order, windows, ranks, state. Pure functions."""
