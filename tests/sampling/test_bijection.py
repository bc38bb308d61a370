"""The keyed hash, and the keyed permutation: valid for every size and key, and random enough."""

from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.sampling.bijection import (
    MAX_SIZE,
    RANKED,
    check_seed,
    hash_ints,
    name_key,
    permute,
    to_range,
)

KEYS = st.integers(0, 2**64 - 1)


def z_of_chi_square(counts, expected):
    """How many standard deviations the chi-square of these counts is above its mean."""
    chi = ((counts - expected) ** 2 / expected).sum()
    return (chi - (len(counts) - 1)) / np.sqrt(2 * (len(counts) - 1))


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
def test_it_is_a_permutation_for_every_small_size(key):
    for size in range(1, 600):
        assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size)), size


@settings(deadline=None, max_examples=60)
@given(size=st.integers(1, 20_000), key=KEYS)
def test_it_is_a_permutation_for_any_size_and_key(size, key):
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


@settings(deadline=None, max_examples=100)
@given(size=st.integers(1, MAX_SIZE) | st.integers(1, 2**40), key=KEYS, data=st.data())
def test_images_are_inside_and_distinct_at_any_size(size, key, data):
    indices = st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True)
    image = permute(np.array(data.draw(indices)), size, key)
    assert image.dtype == np.int64
    assert ((image >= 0) & (image < size)).all()
    assert len(set(image.tolist())) == len(image)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 2**40) | st.integers(1, 30), min_size=1, max_size=30), key=KEYS
)
def test_sizes_and_keys_per_element_give_what_each_gives_alone(sizes, key):
    index = np.array([size // 3 for size in sizes])
    keys = hash_ints(key, np.arange(len(sizes)))
    together = permute(index, np.array(sizes), keys)
    alone = [permute(index[[i]], sizes[i], int(keys[i]))[0] for i in range(len(sizes))]
    assert together.tolist() == alone


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_every_order_of_a_few_items_is_equally_likely(size):
    orders = factorial(size)
    trials = 100 * orders
    keys = np.repeat(hash_ints(np.arange(trials)), size)
    images = permute(np.tile(np.arange(size), trials), size, keys).reshape(trials, size)
    codes, counts = np.unique(images @ size ** np.arange(size), return_counts=True)
    assert len(codes) == orders
    assert abs(z_of_chi_square(counts, 100)) < 5


@pytest.mark.parametrize("size", [RANKED, RANKED + 1, 25, 40, 64, 100])
@pytest.mark.parametrize("step", [1, 2, 7])
def test_two_indices_go_to_every_pair_of_places_equally_often(size, step):
    trials = 20 * size * (size - 1)
    keys = np.repeat(hash_ints(np.arange(trials), 1), 2)
    images = permute(np.tile([0, step], trials), size, keys).reshape(trials, 2)
    codes, counts = np.unique(images @ [1, size], return_counts=True)
    assert len(codes) == size * (size - 1)
    assert abs(z_of_chi_square(counts, 20)) < 5


@pytest.mark.parametrize("size", [1000, 65_536, 2_113_650, 2**40])
def test_neighbours_end_up_anywhere(size):
    index = np.arange(min(size, 100_000) - 1)
    gap = (permute(index + 1, size, 5) - permute(index, size, 5)) % size
    counts, _ = np.histogram(gap, bins=50, range=(0, size))
    assert abs(z_of_chi_square(counts, len(index) / 50)) < 5


@pytest.mark.parametrize("bit", [0, 1, 17, 63])
def test_one_bit_of_the_key_changes_half_of_the_bits_of_the_image(bit):
    size, index = 2**40, np.arange(20_000)
    key = 0x1234_5678_9ABC_DEF0
    flipped = permute(index, size, key) ^ permute(index, size, key ^ (1 << bit))
    shares = [((flipped >> b) & 1).mean() for b in range(40)]
    assert min(shares) > 0.48
    assert max(shares) < 0.52


def test_another_key_is_another_order():
    orders = {tuple(permute(np.arange(50), 50, key)) for key in range(500)}
    assert len(orders) == 500


def test_the_shape_is_kept_and_nothing_gives_nothing():
    assert permute(np.zeros((2, 3), np.int64), 9, 1).shape == (2, 3)
    assert permute(np.zeros(0, np.int64), 9, 1).shape == (0,)


@pytest.mark.parametrize(
    ("index", "size", "value"),
    [
        ([0], 0, "0 items"),
        ([0], -3, "-3 items"),
        ([0], MAX_SIZE + 1, "4611686018427387905 items"),
        ([1, 7], 7, "index 7 .* 7 items"),
        ([-1], 7, "index -1"),
    ],
)
def test_an_invalid_size_or_index_is_named(index, size, value):
    with pytest.raises(UsageError, match=value):
        permute(np.array(index), size, 0)


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
def test_an_invalid_seed_is_named(seed):
    with pytest.raises(UsageError, match=f"seed is {seed!r}"):
        check_seed(seed)
