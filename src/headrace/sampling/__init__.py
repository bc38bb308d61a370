"""Which sample is draw number i: mixture, order, windows, ranks, state. Pure functions."""

from headrace.sampling.bijection import Ints, Words, check_seed, hash_ints, permute, to_range

__all__ = ["Ints", "Words", "check_seed", "hash_ints", "permute", "to_range"]
