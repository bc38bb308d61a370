import numpy as np
import pytest

from headrace.errors import UsageError
from headrace.sampling.row_windows import RowWindows


def plain_twin(rows, size, stride, across, short):
    """Windows written out one by one."""
    stretches, first, found = [sum(rows)] if across else rows, 0, []
    for length in stretches:
        starts = list(range(0, length - size + 1, stride))
        if not starts and short and length:
            found.append((first, length))
        found += [(first + start, size) for start in starts]
        first += length
    return found


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("short", [False, True])
def test_windows_are_those_written_out_one_by_one(across, short):
    chance = np.random.default_rng(3)
    for _ in range(60):
        rows = chance.integers(0, 90, 4).tolist()
        size, stride = chance.integers(1, 70, 2).tolist()
        windows = RowWindows(rows, size, stride, across_files=across, short=short)
        first, count = windows.locate(np.arange(len(windows)))
        twin = plain_twin(rows, size, stride, across, short)
        assert list(zip(first.tolist(), count.tolist(), strict=True)) == twin
        bounds = chance.integers(0, sum(rows) + 1, 9)
        begun = [sum(begin < bound for begin, _ in twin) for bound in bounds]
        assert windows.before(bounds).tolist() == begun


@pytest.mark.parametrize("rows", [64, 65, 127, 128, 1000])
def test_a_set_has_as_many_windows_as_the_rule_says(rows):
    for stride in (1, 32, 64, 100):
        count = len(RowWindows([rows], 64, stride, short=True))
        assert count == max(1, (rows - 64) // stride + 1)


def test_a_set_without_rows_has_no_window():
    assert len(RowWindows([], 8, 8, across_files=True, short=True)) == 0
    assert len(RowWindows([0, 0], 8, 8, short=True)) == 0


@pytest.mark.parametrize(("size", "stride"), [(0, 1), (8, 0), (-1, 1), (8.0, 8), (True, 1)])
def test_sizes_and_strides_are_numbers_of_rows(size, stride):
    with pytest.raises(UsageError, match="Give a number of rows"):
        RowWindows([10], size, stride)


def test_a_window_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="window 3 is outside 3"):
        RowWindows([24], 8, 8).locate([0, 3])
