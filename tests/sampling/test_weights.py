"""Weights as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.sampling.weights import resolve_weights

WEIGHT = st.floats(-1, 1) | st.sampled_from([None, "proportional"])


@given(rows=st.lists(st.tuples(WEIGHT, st.integers(0, 10**8)), min_size=1, max_size=30))
def test_shares_sum_to_1_and_numbers_keep_theirs_beside_proportional_ones(rows):
    weights, pairs = zip(*rows, strict=True)
    try:
        shares = resolve_weights(weights, pairs)
    except UsageError:
        return
    assert math.isclose(math.fsum(shares), 1)
    assert min(shares) >= 0
    if None in weights or "proportional" in weights:
        for weight, share in zip(weights, shares, strict=True):
            if isinstance(weight, float):
                assert share == max(0, weight)


def test_examples():
    assert resolve_weights([1, 3], [5, 5]) == [0.25, 0.75]
    assert resolve_weights([None, None], [30, 10]) == [0.75, 0.25]
    assert resolve_weights([0.5, None, -2, 0], [1, 8, 8, 8]) == [0.5, 0.5, 0, 0]


@pytest.mark.parametrize(
    ("weights", "pairs", "words"),
    [
        ([0.5, 0.5, None], [1, 1, 1], "sum to 1, which leaves nothing for the proportional 'c'"),
        ([2, "proportional", None], [1, 1, 1], "sum to 2.*'b', 'c'"),
        ([0, -1, 0], [1, 1, 1], "no source has a weight above 0"),
        ([0.5, 0.1, None], [1, 1, 0], "no pairs in the proportional 'c'"),
        ([0.5, math.nan, 1], [1, 1, 1], "weight of source 'b' is nan"),
        ([0.5, -math.inf, 1], [1, 1, 1], "weight of source 'b' is -inf"),
        ([0.5, "half", 1], [1, 1, 1], "weight of source 'b' is 'half'"),
        ([0.5], [1, 1, 1], "1 weights for 3"),
    ],
)
def test_weights_that_cannot_be_resolved_are_named(weights, pairs, words):
    with pytest.raises(UsageError, match=words):
        resolve_weights(weights, pairs, ["a", "b", "c"])
