"""Frames of a window, offsets in seconds, valid starts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.sampling.windows import frame_offsets, steps_from_seconds, valid_starts


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


def test_examples_of_each_window():
    assert frame_offsets("endpoints", 5) == (0, 5)
    assert frame_offsets("all", 3) == (0, 1, 2, 3)
    assert frame_offsets("stride", 6, stride=3) == (0, 3, 6)
    assert frame_offsets("stride", 5, stride=3) == (0, 3, 5)
    assert frame_offsets("stride", 2, stride=9) == (0, 2)
    assert frame_offsets("fixed_n", 10, n=4) == (0, 3, 7, 10)
    assert frame_offsets("fixed_n", 10, n=1) == (0,)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: frame_offsets("ends", 5), "window mode is 'ends'.*endpoints"),
        (lambda: frame_offsets("all", 0), "offset k is 0"),
        (lambda: frame_offsets("all", 2.5), "offset k is 2.5"),
        (lambda: frame_offsets("stride", 5), "stride of window mode 'stride' is None"),
        (lambda: frame_offsets("fixed_n", 5, n=0), "n of window mode 'fixed_n' is 0"),
        (lambda: frame_offsets("all", 5, stride=2), "use the window mode 'stride'"),
        (lambda: steps_from_seconds(0.6, None), "0.6 seconds needs the control frequency.*`hz`"),
        (lambda: steps_from_seconds(0, 5), "offset in seconds is 0"),
        (lambda: steps_from_seconds(float("nan"), 5), "offset in seconds is nan"),
        (lambda: steps_from_seconds(1, 0), "hz is 0"),
        (lambda: valid_starts([3], 0), "offset k is 0"),
    ],
)
def test_windows_that_cannot_be_are_named(call, words):
    with pytest.raises(UsageError, match=words):
        call()


def test_seconds_become_steps():
    assert steps_from_seconds(0.6, 5) == 3
    assert steps_from_seconds(0.6, 15) == 9
    assert steps_from_seconds(0.01, 5) == 1


@given(steps=st.lists(st.integers(0, 50)), k=st.integers(1, 60))
def test_a_start_is_valid_when_the_window_ends_inside(steps, k):
    expected = [sum(t + k < length for t in range(length)) for length in steps]
    assert valid_starts(np.array(steps, np.int64), k).tolist() == expected
