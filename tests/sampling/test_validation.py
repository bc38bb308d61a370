"""Validation: every item once, every source from the first batch on."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.sampling.items import SourceItems
from headrace.sampling.validation import ValidationOrder

SOURCES = st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=8)


def order_of(counts, n=0):
    names = [f"source {i}" for i in range(len(counts))]
    return ValidationOrder([SourceItems(each, n) for each in counts], names)


@settings(deadline=None, max_examples=80)
@given(counts=SOURCES)
def test_every_pair_of_every_source_comes_exactly_once(counts):
    order = order_of(counts)
    draws = order.draw(np.arange(order.length))
    rows = zip(draws.source.tolist(), draws.episode.tolist(), draws.start.tolist(), strict=True)
    assert Counter(rows) == Counter(
        (d, e, t)
        for d, episodes in enumerate(counts)
        for e, starts in enumerate(episodes)
        for t in range(starts)
    )


@settings(deadline=None, max_examples=80)
@given(counts=SOURCES)
def test_sources_take_turns_until_they_are_through(counts):
    order = order_of(counts)
    draws = order.draw(np.arange(order.length))
    for d, episodes in enumerate(counts):
        assert draws.ordinal[draws.source == d].tolist() == list(range(sum(episodes)))
    for n in range(order.length):
        seen = np.bincount(draws.source[: n + 1], minlength=len(counts))
        open_ = [d for d, episodes in enumerate(counts) if seen[d] < sum(episodes)]
        if open_:
            assert seen.max() - seen[open_].min() <= 1


@settings(deadline=None, max_examples=40)
@given(counts=SOURCES, data=st.data())
def test_draws_may_be_asked_for_in_any_order(counts, data):
    order = order_of(counts)
    if not order.length:
        return
    numbers = data.draw(st.lists(st.integers(0, order.length - 1)))
    whole = order.draw(np.arange(order.length))
    some = order.draw(np.array(numbers, np.int64))
    assert some.episode.tolist() == whole.episode[numbers].tolist()
    assert some.start.tolist() == whole.start[numbers].tolist()


def test_one_tiny_source_is_in_the_first_batch_and_starves_nobody():
    order = order_of([[100] * 1000, [1], [50] * 500])
    assert set(order.draw(np.arange(3)).source.tolist()) == {0, 1, 2}
    counts = np.bincount(order.draw(np.arange(1001)).source)
    assert counts.tolist() == [500, 1, 500]


def test_the_first_batches_see_many_episodes():
    draws = order_of([[100] * 1000]).draw(np.arange(64))
    assert len(set(draws.episode.tolist())) > 50


def test_n_per_episode_holds_for_validation_too():
    order = order_of([[9, 0, 4], [5]], n=2)
    assert order.length == 6


def test_a_replacement_is_of_the_same_source_and_reaches_every_item():
    order = order_of([[3, 2], [40]])
    draws = [order.replacement(0, attempt) for attempt in range(1, 6)]
    assert {draw.source[0] for draw in draws} == {0}
    assert len({(draw.episode[0], draw.start[0]) for draw in draws}) == 5


@pytest.mark.parametrize("number", [-1, 15])
def test_a_draw_outside_the_pass_is_named(number):
    with pytest.raises(UsageError, match=f"draw {number} is outside a pass of 15"):
        order_of([[9, 4], [2]]).draw([number])


def test_names_must_match():
    with pytest.raises(UsageError, match="1 sources and 0 names"):
        ValidationOrder([SourceItems([1])], [])
