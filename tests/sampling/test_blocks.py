"""The mixture: shares exact to the draw, and an order in which chance finds nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.sampling.blocks import BLOCK, BlockOrder, Shares, assign, layout

WEIGHTS = st.lists(
    st.floats(0, 1e6, allow_subnormal=False) | st.sampled_from([0.0, 0.03, 1.0]), min_size=1
).filter(lambda weights: any(weights))


@settings(deadline=None, max_examples=100)
@given(weights=WEIGHTS, block=st.sampled_from([64, 1000, BLOCK]))
def test_places_sum_to_the_block_and_are_within_one_of_the_ideal(weights, block):
    if sum(weight > 0 for weight in weights) > block:
        return
    places = Shares.from_weights(weights, block).places
    ideal = np.array(weights) / np.sum(weights) * block
    assert places.sum() == block
    assert ((places > 0) == (np.array(weights) > 0)).all()
    raised = ((ideal < 1) & (places == 1)).sum()
    assert (places - ideal < 1 + 1e-6).all()
    assert (ideal - places < 1 + 1e-6 + raised * ideal / block * 2).all()


def test_equal_weights_get_equal_places_whatever_their_scale():
    places = Shares.from_weights([0.03] * 29).places
    assert set(places.tolist()) == {2259, 2260}
    assert np.array_equal(places, Shares.from_weights([1] * 29).places)


def test_a_weight_of_next_to_nothing_still_gets_a_place():
    assert Shares.from_weights([1.0, 1e-300, 0.0]).places.tolist() == [BLOCK - 1, 1, 0]


def test_shares_are_exact_to_the_draw_in_every_block():
    shares = Shares.from_weights([0.5, 0.3, 0.2, 1e-9])
    order = BlockOrder(shares, seed=3)
    for block in (0, 1, 17, 10**9):
        source, _ = order.assign(block * BLOCK + np.arange(BLOCK))
        assert np.array_equal(np.bincount(source, minlength=4), shares.places)


def test_the_running_number_counts_the_earlier_draws_of_the_source():
    source, ordinal = assign(np.arange(3 * BLOCK), Shares.from_weights([5, 2, 1]), seed=1)
    for d in range(3):
        assert np.array_equal(ordinal[source == d], np.arange((source == d).sum()))


@settings(deadline=None, max_examples=20)
@given(numbers=st.lists(st.integers(0, 4 * BLOCK), max_size=40))
def test_draws_may_be_asked_for_in_any_order_and_number(numbers):
    order = BlockOrder(Shares.from_weights([5, 2, 1]), seed=1)
    source, ordinal = order.assign(np.array(numbers, np.int64))
    alone = [order.assign(np.array([number])) for number in numbers]
    assert source.tolist() == [int(s[0]) for s, _ in alone]
    assert ordinal.tolist() == [int(o[0]) for _, o in alone]


def test_blocks_and_seeds_differ():
    shares = Shares.from_weights([1, 1])
    first = layout(shares, 0, 0)[0]
    for seed, block in ((0, 1), (1, 0)):
        equal = (first == layout(shares, seed, block)[0]).mean()
        assert 0.49 < equal < 0.51


def test_a_source_has_no_memory_of_the_source_before_it():
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    source, _ = assign(np.arange(4 * BLOCK), Shares.from_weights(weights), seed=11)
    for lag in (1, 2, 64):
        counts = np.zeros((4, 4))
        np.add.at(counts, (source[:-lag], source[lag:]), 1)
        expected = np.outer(weights, weights) * counts.sum()
        chi = ((counts - expected) ** 2 / expected).sum()
        assert chi < 40  # 9 degrees of freedom: p < 1e-5


def test_shares_are_close_in_every_stretch_of_a_block():
    source, _ = assign(np.arange(BLOCK), Shares.from_weights([0.25, 0.75]), seed=2)
    shares = (source.reshape(-1, 1024) == 0).mean(axis=1)
    assert abs(shares - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 1024)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([], "no weight above 0 among 0"),
        ([0, 0], "no weight above 0 among 2"),
        ([1, -0.5], r"weights\[1\] is -0.5"),
        ([float("nan")], r"weights\[0\] is nan"),
        ([1, 1, float("inf")], r"weights\[2\] is inf"),
        ([1] * (BLOCK + 1), "65537 sources do not fit a block of 65536"),
    ],
)
def test_weights_that_cannot_be_are_named(weights, words):
    with pytest.raises(UsageError, match=words):
        Shares.from_weights(weights)


def test_a_negative_draw_is_named():
    with pytest.raises(UsageError, match="draw number -5 is negative"):
        assign(np.array([3, -5]), Shares.from_weights([1]), seed=0)


def test_a_source_that_is_alone_needs_no_layout():
    shares, numbers = Shares.from_weights([0, 1, 0], 64), np.array([0, 63, 64, 700, 5])
    source, ordinal = assign(numbers, shares, 3)
    for number, where, count in zip(numbers, source, ordinal, strict=True):
        owner, rank = layout(shares, 3, int(number) // 64)
        assert (where, count) == (owner[number % 64], number // 64 * 64 + rank[number % 64])
