"""The keyed hash and its mapping to a range."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.sampling.hashed import check_seed, hash_ints, name_key, to_range


def test_the_first_words_are_those_of_splitmix64():
    assert hex(hash_ints(0)[0]) == "0xe220a8397b1dcdaf"  # first output of SplitMix64(0)
    assert hex(hash_ints(0x9E3779B97F4A7C15)[0]) == "0x6e789e6aa1b965f4"  # the second


@given(word=st.integers(0, 2**64 - 1), size=st.integers(1, 2**63 - 1))
def test_a_range_is_the_upper_half_of_the_product(word, size):
    assert to_range(np.array([word], np.uint64), size)[0] == word * size >> 64


def test_a_range_is_hit_evenly():
    counts = np.bincount(to_range(hash_ints(7, np.arange(100_000)), 10), minlength=10)
    assert abs(counts - 10_000).max() < 500  # 5 standard deviations


def test_parts_are_broadcast_and_their_order_matters():
    together = hash_ints(1, np.arange(3), 2)
    assert together.tolist() == [int(hash_ints(1, i, 2)[0]) for i in range(3)]
    assert hash_ints(1, 2) != hash_ints(2, 1)


def test_names_that_differ_have_keys_that_differ():
    assert len({name_key(f"source {i}") for i in range(10_000)}) == 10_000


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "0", True, None])
def test_a_seed_that_is_none_is_named(seed):
    with pytest.raises(UsageError, match="seed is"):
        check_seed(seed)
