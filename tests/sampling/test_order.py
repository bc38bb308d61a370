import numpy as np
import pytest

from headrace.errors import UsageError
from headrace.sampling.order import LocalOrder

GROUPS = [
    ([3, 2, 4], 2),
    ([5], 4),
    ([0, 7, 0, 3, 9, 1], 3),
    ([40] * 25, 4),
    ([7] * 5, 16),
    ([1] * 30, 8),
]


@pytest.mark.parametrize(("counts", "opened"), GROUPS)
def test_every_item_comes_once_in_every_pass(counts, opened):
    order = LocalOrder(counts, opened, seed=1)
    for turn in range(3):
        numbers = np.arange(turn * order.length, (turn + 1) * order.length)
        passes, items = order.draw(numbers)
        assert (passes == turn).all()
        assert sorted(items.tolist()) == list(range(sum(counts)))


@pytest.mark.parametrize(("counts", "opened"), GROUPS)
def test_a_draw_does_not_depend_on_those_requested_with_it(counts, opened):
    order = LocalOrder(counts, opened, seed=1)
    _, items = order.draw(np.arange(2 * order.length))
    fresh = LocalOrder(counts, opened, seed=1)
    alone = [int(fresh.draw([n])[1][0]) for n in reversed(range(2 * order.length))]
    assert alone[::-1] == items.tolist()


def test_passes_and_seeds_have_orders_of_their_own():
    order, other = LocalOrder([40] * 25, 4, seed=1), LocalOrder([40] * 25, 4, seed=2)
    first, second = order.draw(np.arange(2000))[1].reshape(2, -1)
    assert (first == second).mean() < 0.02
    assert (first == other.draw(np.arange(1000))[1]).mean() < 0.02


def test_no_more_groups_are_open_than_allowed():
    """Within a step's worth of draws there are K groups, and across two steps one more."""
    order = LocalOrder([40] * 25, 4, seed=1)
    groups = order.draw(np.arange(1000))[1] // 40
    for begin in range(0, 1000, 40):
        assert len(set(groups[begin : begin + 40].tolist())) == 4
    window = [len(set(groups[begin : begin + 40].tolist())) for begin in range(961)]
    assert max(window) <= 5


def test_a_group_is_opened_once_in_a_pass_except_those_that_wrap_around():
    order = LocalOrder([40] * 25, 4, seed=1)
    groups = order.draw(np.arange(1000))[1] // 40
    spans = {g: np.flatnonzero(groups == g) for g in range(25)}
    long = [g for g, places in spans.items() if places[-1] - places[0] >= 4 * 40]
    assert len(long) == 3  # K - 1


def test_with_all_groups_open_all_are_mixed():
    order = LocalOrder([50] * 4, 9, seed=0)
    groups = order.draw(np.arange(200))[1] // 50
    for begin in range(0, 200, 50):
        assert len(set(groups[begin : begin + 50].tolist())) == 4


def test_invalid_arguments_are_named():
    with pytest.raises(UsageError, match="no items"):
        LocalOrder([0, 0], 2, seed=0)
    with pytest.raises(UsageError, match="opened is 0"):
        LocalOrder([3], 0, seed=0)
    with pytest.raises(UsageError, match="-1"):
        LocalOrder([3], 1, seed=0).draw([-1])
