"""The row loader: every window once a pass, the same batches however it is run, and bad input."""

import gc
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.errors import (
    BudgetError,
    DatasetError,
    HeadraceError,
    SelectionError,
    UnknownFieldError,
    UsageError,
)
from tests.row_files import (
    OUTPUTS,
    assert_same,
    fail_on_13,
    prepare,
    transform,
    transform_many,
    which,
    write_set,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """357 rows in four files, one of them empty: 44 windows of 8. Do not change it."""
    return write_set(tmp_path_factory.mktemp("rows") / "data")


@pytest.fixture
def rows(data):
    return hr.RowSet(data, columns=["number"], window=8)


@pytest.fixture
def loaders():
    made = []

    def make(rows, **options):
        settings = {"batch_size": 5, "transform": transform, "seed": 3}
        settings |= {"workers": 0, "keep_free": 0, **options}
        made.append(hr.RowLoader(rows, **settings))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


def take(loader, count):
    return [{name: array.copy() for name, array in next(loader).items()} for _ in range(count)]


def whats(batches):
    return [tuple(what) for batch in batches for what in batch["what"].tolist()]


# -- the set -----------------------------------------------------------------------------------


def test_a_set_is_an_array_of_windows(rows):
    assert len(rows) == 357 // 8
    assert rows[12]["number"].tolist() == list(range(96, 104))  # in two files
    assert rows[-1]["number"].tolist() == list(range(344, 352))
    assert rows.place(13) == (rows.catalog.files[2].path, 4)
    with pytest.raises(IndexError):
        rows[44]


def test_windows_within_files_leave_out_what_does_not_fill_one(data):
    rows = hr.RowSet(data, columns=["number"], window=8, stride=5, across_files=False)
    assert len(rows) == 19 + 0 + 10 + 39
    assert rows[18]["number"].tolist() == list(range(90, 98))
    assert rows[19]["number"].tolist() == list(range(100, 108))


def test_an_eager_set_reads_nothing_later(tmp_path):
    folder = write_set(tmp_path / "data")
    for store in (False, True):
        rows = hr.RowSet(folder, columns=["number"], window=8, eager=True, store=store, cache=0)
        moved = folder.rename(tmp_path / "away")
        assert rows[40]["number"].tolist() == list(range(320, 328))
        moved.rename(folder)


def test_a_set_can_be_sent_to_another_process_and_describes_itself_the_same(rows):
    again = pickle.loads(pickle.dumps(rows))
    assert repr(again) == repr(rows)
    assert again[12]["number"].tolist() == rows[12]["number"].tolist()


# -- the sequence ------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", ["exact", "local", "none"])
def test_every_window_comes_once_in_every_pass_with_its_rows(rows, loaders, shuffle):
    loader = loaders(rows, batch_size=11, shuffle=shuffle)
    for epoch in range(3):
        batches = take(loader, 4)
        found = whats(batches)
        assert sorted(found) == [(window, epoch, 3) for window in range(44)]
        numbers = np.concatenate([batch["numbers"] for batch in batches])
        windows = np.array([window for window, _, _ in found])
        np.testing.assert_array_equal(numbers, windows[:, None] * 8 + np.arange(8))
        assert (windows.tolist() == list(range(44))) == (shuffle == "none")


def test_batches_do_not_depend_on_threads_processes_store_or_calls(
    data, rows, loaders, monkeypatch
):
    expected = take(loaders(rows, workers=1), 30)
    assert_same(take(loaders(rows, workers=4), 30), expected)
    assert_same(take(loaders(rows, transform=transform_many), 30), expected)
    stored = hr.RowSet(data, columns=["number", "half"], window=8, prepare=prepare, store=True)
    assert_same(take(loaders(stored), 30), expected)
    monkeypatch.setattr("headrace.engine.workers.START_AFTER", 0.0)
    loader = loaders(stored, workers=2)
    assert_same(take(loader, 30), expected)
    deadline = time.monotonic() + 20
    while len(loader.statistics().engine.processes) < 2 and time.monotonic() < deadline:
        take(loader, 1)
    assert len(loader.statistics().engine.processes) == 2
    loader.load_state_dict(loaders(rows).state_dict())
    assert_same(take(loader, 30), expected)


def test_without_a_transform_a_batch_has_the_columns(rows, data, loaders):
    loader = loaders(rows, transform=None, shuffle="none")
    batch = next(loader)
    assert batch["number"].tolist() == np.arange(40).reshape(5, 8).tolist()
    assert type(batch) is dict  # what jax.tree knows
    with pytest.raises(UsageError, match="column 'text' is text"):
        loaders(hr.RowSet(data, columns=["text"], window=8), transform=None)


def test_a_function_that_is_not_wrapped_is_refused(rows, loaders):
    with pytest.raises(UsageError, match="RowTransform") as error:
        loaders(rows, transform=which)
    assert "outputs" in error.value.remedy


# -- state and hosts ---------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", ["exact", "local"])
def test_a_run_goes_on_with_other_hosts_batches_and_threads(rows, loaders, shuffle):
    whole = whats(take(loaders(rows, batch_size=6, shuffle=shuffle), 20))
    hosts = [
        loaders(rows, batch_size=3, shuffle=shuffle, rank=rank, world_size=2) for rank in range(2)
    ]
    found = []
    for _ in range(7):
        found += [what for host in hosts for what in whats(take(host, 1))]
    state = hosts[1].state_dict()
    assert state == hosts[0].state_dict()
    alone = loaders(rows, batch_size=13, shuffle=shuffle, workers=1)
    alone.load_state_dict(state)
    found += whats(take(alone, 6))
    assert found == whole[: len(found)]


def test_the_order_does_not_depend_on_row_groups_unless_it_is_local(tmp_path, loaders):
    sets = [
        hr.RowSet(write_set(tmp_path / name, [(400, group)]), columns=["number"], window=8)
        for name, group in (("a", 400), ("b", 9))
    ]
    first, second = (loaders(rows) for rows in sets)
    assert_same(take(first, 10), take(second, 10))
    second.load_state_dict(first.state_dict())
    local = loaders(sets[1], shuffle="local")
    with pytest.raises(UsageError, match="digest was"):
        local.load_state_dict(loaders(sets[0], shuffle="local").state_dict())


def test_a_state_of_other_data_or_another_seed_says_what_differs(rows, data, loaders):
    state = loaders(rows).state_dict()
    with pytest.raises(UsageError, match="seed was 3, is 4"):
        loaders(rows, seed=4).load_state_dict(state)
    with pytest.raises(UsageError, match="stride was 8, is 4"):
        loaders(hr.RowSet(data, columns=["number"], window=8, stride=4)).load_state_dict(state)
    with pytest.raises(UsageError, match="shuffle was 'exact', is 'local'"):
        loaders(rows, shuffle="local").load_state_dict(state)


def test_the_next_windows_can_be_asked_for(rows, loaders):
    loader = loaders(rows)
    take(loader, 2)
    epochs, windows = loader.next_windows(5)
    assert whats(take(loader, 1)) == [
        (window, epoch, 3) for window, epoch in zip(windows, epochs, strict=True)
    ]


# -- running -----------------------------------------------------------------------------------


def test_memory_stays_within_the_budget_and_two_batches_are_needed(rows, loaders):
    loader = loaders(rows, memory="200KB")
    for _ in range(50):
        next(loader)
    figures = loader.statistics().engine.budget
    assert figures.peak <= figures.limit == 200_000
    with pytest.raises(BudgetError, match="does not hold two batches"):
        loaders(rows, memory=1000)


def test_threads_end_when_a_loader_is_closed_or_let_go(rows):
    before = set(threading.enumerate())
    loader = hr.RowLoader(rows, batch_size=4, transform=transform, workers=0)
    next(loader)
    assert set(threading.enumerate()) > before
    loader.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(UsageError, match="closed"):
        next(loader)
    other = hr.RowLoader(rows, batch_size=4, transform=transform, workers=0)
    next(other)
    del other
    gc.collect()
    assert set(threading.enumerate()) == before


def test_an_error_of_a_transform_says_which_window_it_was(rows, loaders):
    loader = loaders(rows, transform=hr.RowTransform(fail_on_13, OUTPUTS))
    with pytest.raises(ZeroDivisionError) as caught:
        take(loader, 9)
    where, call = caught.value.__notes__
    assert where == f"in the transform of window 13: row 4 of {rows.catalog.files[2].path}"
    for told in ("rows: number [8]", "out: numbers [8], what [3], noise []", "many=False"):
        assert told in call


def _half(rows, out, draw):
    count = draw.window % 8
    out["numbers"][:count] = rows["number"][:count] + 1


def _returns(rows, out, draw):
    return {"numbers": rows["number"]}


def test_what_a_transform_does_not_write_is_zero_in_every_batch(rows, loaders):
    half = hr.RowTransform(_half, {"numbers": ((8,), "int64")})
    for batch in take(loaders(rows, transform=half, batch_size=44), 12):
        counts = (batch["numbers"] != 0).sum(axis=1)
        assert sorted(counts.tolist()) == sorted(window % 8 for window in range(44))


def test_a_transform_that_returns_something_is_refused(rows, loaders):
    with pytest.raises(UsageError, match="returned dict"):
        next(loaders(rows, transform=hr.RowTransform(_returns, OUTPUTS)))


def test_an_error_of_a_transform_in_a_process_is_the_same(data, rows, loaders, monkeypatch):
    monkeypatch.setattr("headrace.engine.workers.START_AFTER", 0.0)
    stored = hr.RowSet(data, columns=["number"], window=8, store=True)
    failing = loaders(
        stored, workers=1, transform=hr.RowTransform(_fail_later, OUTPUTS), batch_size=2
    )
    with pytest.raises(ZeroDivisionError) as caught:
        while True:
            take(failing, 1)
    assert failing.statistics().engine.processes
    assert "in the transform of window" in caught.value.__notes__[0]


def _fail_later(rows, out, draw):
    """Fails in a worker process alone."""
    if any("headrace.engine.workers" in word for word in sys.orig_argv):
        raise ZeroDivisionError("later")
    which(rows, out, draw)


SCRIPT = """
import sys, time, headrace as hr
from headrace.engine import workers
workers.START_AFTER = 0.0

def transform(rows, out, draw):
    out["window"][...] = draw.window

if __name__ == "__main__":
    rows = hr.RowSet(sys.argv[1], columns=["number"], window=8, store=True)
    transform = hr.RowTransform(transform, outputs={"window": ((), "int64")})
    with hr.RowLoader(rows, batch_size=4, transform=transform, workers=1) as loader:
        until = time.monotonic() + 30
        while not loader.statistics().engine.processes and time.monotonic() < until:
            next(loader)
        print(len(loader.statistics().engine.processes))
"""


def test_a_transform_of_the_script_itself_runs_in_processes_where_cloudpickle_is(data, tmp_path):
    pytest.importorskip("cloudpickle")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, script, data], capture_output=True, text=True, env=environment
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_what_cannot_be_sent_to_a_process_stays_with_the_threads(
    rows, data, loaders, monkeypatch, caplog
):
    monkeypatch.setattr("headrace.engine.workers.START_AFTER", 0.0)
    lock = threading.Lock()  # cannot be pickled

    def own(rows, out, draw):
        with lock:
            which(rows, out, draw)

    with caplog.at_level(logging.WARNING, "headrace"):
        batches = take(loaders(rows, transform=hr.RowTransform(own, OUTPUTS), workers=2), 20)
    assert_same(batches, take(loaders(rows), 20))
    assert "cannot be sent to worker processes" in caplog.text
    assert len(caplog.records) == 1


# -- bad input ---------------------------------------------------------------------------------


def test_a_column_that_is_not_there_is_named(data):
    with pytest.raises(UnknownFieldError, match="no column 'rtt'.*number"):
        hr.RowSet(data, columns=["rtt"])
    with pytest.raises(UsageError, match="no columns"):
        hr.RowSet(data, columns=[])


def test_fewer_rows_than_a_window_are_an_error_or_one_short_window(tmp_path, loaders):
    folder = write_set(tmp_path, [(3, None), (0, None), (2, None)])
    with pytest.raises(SelectionError, match=r"5 rows where a window has 8.*short_windows=True"):
        hr.RowSet(folder, columns=["number"], window=8)
    rows = hr.RowSet(folder, columns=["number"], window=8, short_windows=True)
    assert len(rows) == 1
    for many in (transform, transform_many):
        loader = loaders(rows, transform=many, batch_size=2)
        assert next(loader)["numbers"].tolist() == [[0, 1, 2, 3, 4, -1, -1, -1]] * 2
    with pytest.raises(UsageError, match="no place in an array"):
        loaders(rows, transform=None)


def test_files_shorter_than_a_window_are_named(data, loaders):
    with pytest.raises(SelectionError, match=r"1 files .* window of 64: shard_0002.parquet"):
        hr.RowSet(data, columns=["number"], window=64, across_files=False)
    rows = hr.RowSet(data, columns=["number"], window=64, across_files=False, short_windows=True)
    assert [len(rows[n]["number"]) for n in range(len(rows))] == [64, 57, 64, 64, 64]


def test_files_without_any_rows_are_an_error(tmp_path):
    folder = write_set(tmp_path, [(0, None), (0, None)])
    with pytest.raises(DatasetError, match="the 2 files have no rows"):
        hr.RowSet(folder, window=8, short_windows=True)


def test_more_hosts_than_windows_are_an_error(rows, loaders):
    with pytest.raises(UsageError, match="45 hosts share 44 windows"):
        loaders(rows, rank=0, world_size=45)
    next(loaders(rows, batch_size=1, rank=43, world_size=44))


def test_a_file_that_changes_while_it_is_read_ends_the_run_with_its_name(tmp_path, loaders):
    folder = write_set(tmp_path / "data", [(100, 10), (100, 10)])
    rows = hr.RowSet(folder, columns=["number"], window=8, cache=0)
    loader = loaders(rows)
    next(loader)
    write_set(folder, [(100, 10), (99, 10)])
    with pytest.raises(DatasetError, match="changed since it was indexed .*shard_000"):
        take(loader, 50)
    assert len(hr.RowSet(folder, columns=["number"], window=8)) == 199 // 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": "some"}, "shuffle is 'some'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"rank": 2, "world_size": 2}, "rank 2 does not exist"),
        ({"seed": -1}, "seed is -1"),
        (
            {"transform": hr.RowTransform(which, {"x": ((2,), object)})},
            r"outputs\['x'\] has type object",
        ),
    ],
)
def test_options_that_cannot_be_are_named(rows, loaders, options, message):
    with pytest.raises(HeadraceError, match=message):
        loaders(rows, **options)
