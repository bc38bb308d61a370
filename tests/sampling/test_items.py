"""Within a source: every item once per pass, in an order of each pass's own."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.sampling.hashed import hash_ints
from headrace.sampling.items import ItemTable, SourceItems

COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(any)


@settings(deadline=None, max_examples=60)
@given(counts=COUNTS, key=st.integers(0, 2**64 - 1), turn=st.sampled_from([0, 1, 10**6]))
def test_every_episode_and_start_comes_exactly_once_per_pass(counts, key, turn):
    items = SourceItems(counts)
    assert items.length == sum(counts)
    ordinals = turn * items.length + np.arange(items.length)
    episode, start = items.locate(ordinals, key)
    seen = Counter(zip(episode.tolist(), start.tolist(), strict=True))
    assert seen == Counter((e, t) for e, count in enumerate(counts) for t in range(count))


@settings(deadline=None, max_examples=60)
@given(counts=COUNTS, n=st.integers(1, 5), key=st.integers(0, 2**64 - 1))
def test_n_per_episode_gives_each_episode_with_a_start_n_times_per_pass(counts, n, key):
    items = SourceItems(counts, samples_per_episode=n)
    episode, start = items.locate(np.arange(2 * items.length), key)
    assert ((start >= 0) & (start < np.array(counts)[episode])).all()
    for half in np.split(episode, 2):
        assert Counter(half.tolist()) == {e: n for e, count in enumerate(counts) if count}


def test_n_per_episode_sees_other_frames_in_each_pass_and_all_of_them_equally():
    items = SourceItems([100] * 10, samples_per_episode=1)
    episode, start = items.locate(np.arange(10 * 2000), key=3)
    for e in range(10):
        counts = np.bincount(start[episode == e], minlength=100)
        assert ((counts - 20) ** 2 / 20).sum() < 99 + 5 * np.sqrt(198)


def test_passes_have_orders_of_their_own():
    items = SourceItems([1000])
    _, start = items.locate(np.arange(2000), key=3)
    assert (start[:1000] == start[1000:]).sum() < 10
    assert abs(np.corrcoef(start[:1000], start[1000:])[0, 1]) < 0.15


def test_chance_finds_nothing_in_the_order_of_a_pass():
    items = SourceItems([50] * 400)
    episode, start = items.locate(np.arange(items.length), key=8)
    thirds = np.array_split(episode, 20)
    counts = np.array([np.histogram(part, bins=20, range=(0, 400))[0] for part in thirds])
    expected = items.length / 400
    assert abs(((counts - expected) ** 2 / expected).sum() - 361) < 5 * np.sqrt(2 * 361)
    assert abs(np.corrcoef(start[:-1], start[1:])[0, 1]) < 5 / np.sqrt(items.length)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_many_sources_in_one_lookup_give_what_each_gives_alone(data):
    sources = [
        SourceItems(data.draw(COUNTS), data.draw(st.integers(0, 3)))
        for _ in range(data.draw(st.integers(1, 6)))
    ]
    keys = hash_ints(np.arange(len(sources)))
    rows = data.draw(
        st.lists(st.tuples(st.integers(0, len(sources) - 1), st.integers(0, 10**6)), min_size=1)
    )
    source, ordinal = (np.array(column) for column in zip(*rows, strict=True))
    episode, start = ItemTable(sources, keys).locate(source.astype(np.int32), ordinal)
    for i, (d, n) in enumerate(rows):
        alone = sources[d].locate(np.array([n]), int(keys[d]))
        assert (episode[i], start[i]) == (alone[0][0], alone[1][0])


@pytest.mark.parametrize(
    ("counts", "n", "words"),
    [
        ([3, -1], 0, "1 negative"),
        ([[3]], 0, r"shape \(1, 1\)"),
        ([3], -2, "samples_per_episode is -2"),
    ],
)
def test_counts_that_cannot_be_are_named(counts, n, words):
    with pytest.raises(UsageError, match=words):
        SourceItems(counts, n)


def test_no_episode_is_no_item():
    assert SourceItems([]).length == SourceItems([0, 0], 4).length == 0
