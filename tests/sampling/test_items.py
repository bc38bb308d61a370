"""Items of a source: every one once per pass. Windows of steps and of table rows."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.sampling.bijection import hash_ints
from headrace.sampling.items import (
    ItemTable,
    RowWindows,
    SourceItems,
    frame_offsets,
    steps_from_seconds,
    valid_starts,
)

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


def test_n_per_episode_sees_other_frames_in_each_pass_and_all_equally_often():
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


def test_the_order_of_a_pass_looks_random():
    items = SourceItems([50] * 400)
    episode, start = items.locate(np.arange(items.length), key=8)
    parts = np.array_split(episode, 20)
    counts = np.array([np.histogram(part, bins=20, range=(0, 400))[0] for part in parts])
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
    ("counts", "n", "value"),
    [
        ([3, -1], 0, "1 negative"),
        ([[3]], 0, r"shape \(1, 1\)"),
        ([3], -2, "samples_per_episode is -2"),
    ],
)
def test_invalid_counts_are_named(counts, n, value):
    with pytest.raises(UsageError, match=value):
        SourceItems(counts, n)


def test_without_valid_starts_there_are_no_items():
    assert SourceItems([]).length == SourceItems([0, 0], 4).length == 0


@given(k=st.integers(1, 200), stride=st.integers(1, 250), n=st.integers(2, 60))
def test_every_window_begins_at_0_ends_at_k_and_never_goes_back(k, stride, n):
    windows = [
        frame_offsets("endpoints", k),
        frame_offsets("all", k),
        frame_offsets("stride", k, stride=stride),
        frame_offsets("fixed_n", k, n=n),
    ]
    for window in windows:
        assert window[0] == 0
        assert window[-1] == k
        assert list(window) == sorted(window)
    assert windows[1] == tuple(range(k + 1))
    assert all(frame % stride == 0 for frame in windows[2][:-1])
    assert windows[3] == tuple(np.rint(np.linspace(0, k, n)).astype(int))


def test_examples_of_each_window_mode():
    assert frame_offsets("endpoints", 5) == (0, 5)
    assert frame_offsets("single", 0) == (0,)
    assert frame_offsets("all", 3) == (0, 1, 2, 3)
    assert frame_offsets("stride", 6, stride=3) == (0, 3, 6)
    assert frame_offsets("stride", 5, stride=3) == (0, 3, 5)
    assert frame_offsets("stride", 2, stride=9) == (0, 2)
    assert frame_offsets("fixed_n", 10, n=4) == (0, 3, 7, 10)
    assert frame_offsets("fixed_n", 10, n=1) == (0,)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: frame_offsets("ends", 5), "'ends'.*endpoints"),
        (lambda: frame_offsets("all", 0), "offset k is 0"),
        (lambda: frame_offsets("all", 2.5), "offset k is 2.5"),
        (lambda: frame_offsets("stride", 5), "stride .* is None"),
        (lambda: frame_offsets("fixed_n", 5, n=0), "n .*'fixed_n' is 0"),
        (lambda: frame_offsets("all", 5, stride=2), "stride is 2.*'all'.*'stride'"),
        (lambda: steps_from_seconds(0.6, None), "0.6 seconds.*`hz`"),
        (lambda: steps_from_seconds(0, 5), "seconds is 0"),
        (lambda: steps_from_seconds(float("nan"), 5), "seconds is nan"),
        (lambda: steps_from_seconds(1, 0), "hz is 0"),
        (lambda: valid_starts([3], -1), "offset k is -1"),
    ],
)
def test_an_invalid_window_is_named(call, value):
    with pytest.raises(UsageError, match=value):
        call()


def test_seconds_become_steps():
    assert steps_from_seconds(0.6, 5) == 3
    assert steps_from_seconds(0.6, 15) == 9
    assert steps_from_seconds(0.01, 5) == 1


@given(steps=st.lists(st.integers(0, 50)), k=st.integers(1, 60))
def test_a_start_is_valid_when_the_window_ends_inside(steps, k):
    expected = [sum(t + k < length for t in range(length)) for length in steps]
    assert valid_starts(np.array(steps, np.int64), k).tolist() == expected


def plain_twin(rows, size, stride, across, short):
    """All windows, listed one by one."""
    spans, first, found = [sum(rows)] if across else rows, 0, []
    for length in spans:
        starts = list(range(0, length - size + 1, stride))
        if not starts and short and length:
            found.append((first, length))
        found += [(first + start, size) for start in starts]
        first += length
    return found


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("short", [False, True])
def test_row_windows_equal_those_listed_one_by_one(across, short):
    rng = np.random.default_rng(3)
    for _ in range(60):
        rows = rng.integers(0, 90, 4).tolist()
        size, stride = rng.integers(1, 70, 2).tolist()
        windows = RowWindows(rows, size, stride, across_files=across, short=short)
        first, count = windows.locate(np.arange(len(windows)))
        twin = plain_twin(rows, size, stride, across, short)
        assert list(zip(first.tolist(), count.tolist(), strict=True)) == twin
        bounds = rng.integers(0, sum(rows) + 1, 9)
        begun = [sum(begin < bound for begin, _ in twin) for bound in bounds]
        assert windows.before(bounds).tolist() == begun


@pytest.mark.parametrize("rows", [64, 65, 127, 128, 1000])
def test_short_files_have_the_documented_number_of_windows(rows):
    for stride in (1, 32, 64, 100):
        count = len(RowWindows([rows], 64, stride, short=True))
        assert count == max(1, (rows - 64) // stride + 1)


def test_without_rows_there_are_no_windows():
    assert len(RowWindows([], 8, 8, across_files=True, short=True)) == 0
    assert len(RowWindows([0, 0], 8, 8, short=True)) == 0


@pytest.mark.parametrize(("size", "stride"), [(0, 1), (8, 0), (-1, 1), (8.0, 8), (True, 1)])
def test_sizes_and_strides_are_whole_numbers_from_1(size, stride):
    with pytest.raises(UsageError, match=f"is {stride if size == 8 else size!r}"):
        RowWindows([10], size, stride)


def test_a_window_number_out_of_range_is_named():
    with pytest.raises(UsageError, match="window 3 .* 3 windows"):
        RowWindows([24], 8, 8).locate([0, 3])
