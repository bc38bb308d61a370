"""Ranks: disjoint, together the whole sequence, whatever the world size and the batch size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.sampling.ranks import draws_after, rank_numbers


@given(
    draws=st.integers(0, 10**12),
    batches=st.integers(1, 5),
    batch_size=st.integers(1, 20),
    world_size=st.integers(1, 9),
)
def test_ranks_are_disjoint_and_together_are_the_sequence(draws, batches, batch_size, world_size):
    numbers = [
        rank_numbers(draws, batch, batch_size, rank, world_size)
        for batch in range(batches)
        for rank in range(world_size)
    ]
    end = draws_after(draws, batches, batch_size, world_size)
    assert np.concatenate(numbers).tolist() == list(range(draws, end))


@given(legs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 5))))
def test_a_run_may_resume_with_another_batch_size_and_world_size(legs):
    draws, seen = 0, []
    for batches, batch_size, world_size in legs:
        for batch in range(batches):
            for rank in range(world_size):
                seen += rank_numbers(draws, batch, batch_size, rank, world_size).tolist()
        draws = draws_after(draws, batches, batch_size, world_size)
    assert seen == list(range(draws))


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ((0, 0, 4, 2, 2), "rank 2 .* 2"),
        ((0, 0, 4, -1, 2), "rank -1"),
        ((0, 0, 0, 0, 1), "batch_size is 0"),
        ((-1, 0, 4, 0, 1), "draws is -1"),
        ((0, -1, 4, 0, 1), "batch is -1"),
        ((0, 0, 4, 0, 0), "world_size is 0"),
    ],
)
def test_an_invalid_rank_is_named(arguments, value):
    with pytest.raises(UsageError, match=value):
        rank_numbers(*arguments)
