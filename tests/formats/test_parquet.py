"""Row groups of Parquet files: planned, decoded, kept in memory and on disk."""

import errno
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import DataError, DatasetError, UsageError
from headrace.formats.parquet import rows as module
from headrace.formats.parquet.columns import Records, plain_columns, prepare_key
from headrace.formats.parquet.files import ParquetStamp, RowGroups, read_footer
from headrace.formats.parquet.rows import RowAccess, RowGroupCache, fill_store
from headrace.formats.parquet.store import RowGroupStore
from tests.row_files import prepare, write_set


def stamps(folder):
    found = []
    for path in sorted(folder.glob("*.parquet")):
        about = path.stat()
        found.append(ParquetStamp(str(path), about.st_size, about.st_mtime_ns))
    return found


def make_access(folder, tmp_path=None, least=1, columns=("number",), limit=None, **options):
    files = stamps(folder)
    groups = RowGroups([read_footer(Path(file.path)).group_rows for file in files], least)
    store = RowGroupStore(tmp_path / "store", files, groups, limit) if tmp_path else None
    options = {"cache_bytes": 1 << 20, "store": store, **options}
    return RowAccess(files, groups, columns, options.pop("prepare", plain_columns), **options)


# -- row groups --------------------------------------------------------------------------------


def test_row_groups_cover_every_row_once_whatever_their_least_size():
    group_rows = [(30, 30, 30, 10), (), (7, 0, 7), (200,), (0,)]
    for least in (1, 8, 25, 60, 10_000):
        groups = RowGroups(group_rows, least)
        assert sum(group.rows for group in groups) == 314
        assert all(group.rows for group in groups)
        slices = [groups.slices(first, 1) for first in range(314)]
        rows = [int(groups.starts[number]) + begin for ((number, begin, _),) in slices]
        assert rows == list(range(314))
        whole = groups.slices(0, 314)
        assert [end - begin for _, begin, end in whole] == [group.rows for group in groups]


# -- columns -----------------------------------------------------------------------------------


def test_columns_become_numpy_and_nulls_become_nan_nat_or_empty():
    rows = plain_columns(
        pa.table(
            {
                "int": pa.array([1, 2, 3], pa.int32()),
                "float": pa.array([1.5, None, 3]),
                "time": pa.array([1, None, 3], pa.timestamp("ns", "UTC")),
                "text": pa.array(["a", None, "äb"]),
                "code": pa.array(["u", None, "v"]).dictionary_encode(),
                "list": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
            }
        )
    )
    assert rows["int"].dtype == np.int32
    assert np.isnan(rows["float"][1])
    assert np.isnat(rows["time"][1])
    assert rows["time"].dtype == np.dtype("M8[ns]")
    assert rows["text"].tolist() == [b"a", b"", "äb".encode()]
    assert rows["code"].tolist() == [b"u", b"", b"v"]
    assert rows["list"].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_dictionaries_that_differ_between_row_groups_are_unified():
    parts = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "a"]).dictionary_encode()]
    rows = plain_columns(pa.table({"x": pa.chunked_array(parts)}))
    assert rows["x"].tolist() == [b"a", b"b", b"c", b"a"]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (pa.array([1, None]), "'x' of type int64.* 1 null"),
        (pa.array([[1], [2, 3]]), "'x' of type list<"),
        (pa.array([{"a": 1}]), "'x' of type struct<"),
        (pa.array([None, None]), "'x' of type null"),
    ],
)
def test_a_column_that_numpy_cannot_hold_is_named(column, value):
    with pytest.raises((DataError, UsageError), match=value):
        plain_columns(pa.table({"x": column}))


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (None, "NoneType"),
        ({"a": [1, 2]}, "'a' as list"),
        ({"a": np.array(["x", None], object)}, "'a' as object"),
        ({"a": np.arange(3)}, "3 entries of 'a' for 100 rows"),
    ],
)
def test_an_unusable_result_of_a_prepare_is_named(tmp_path, result, value):
    write_set(tmp_path, [(100, None)])
    access = make_access(tmp_path, prepare=lambda _: result)
    with pytest.raises(UsageError, match=value):
        access.rows(0, 1)


def test_an_error_in_a_prepare_names_the_row_group(tmp_path):
    write_set(tmp_path, [(100, 30)])
    access = make_access(tmp_path, prepare=lambda table: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        access.rows(65, 1)
    assert "row group 2 of" in caught.value.__notes__[0]


def test_the_key_of_a_prepare_changes_with_its_code_arguments_and_version():
    def one(table, scale=2):
        return {"a": table["a"].to_numpy() * scale}

    def other(table, scale=3):
        return {"a": table["a"].to_numpy() * scale}

    assert prepare_key(one) == prepare_key(one)
    other.__qualname__ = one.__qualname__
    assert prepare_key(other) != prepare_key(one)
    assert prepare_key(partial(one, scale=4)) != prepare_key(partial(one, scale=5))
    before = prepare_key(one)
    one.version = 2
    assert prepare_key(one) != before


def test_the_key_of_a_prepare_covers_the_helpers_and_constants_that_it_uses():
    def key(scale=1.0, table="[1, 2]", helper="x", other="np"):
        module = {"np": np}
        exec(
            f"SCALE, TABLE, OTHER = {scale}, np.array({table}), {other}\n"
            f"def outer(x): return [helper(y) * SCALE for y in x]\n"
            f"def helper(x): return {helper}\n"
            "def prep(table): return {'a': outer(table), 'b': TABLE, 'c': OTHER}",
            module,
        )
        return prepare_key(module["prep"])

    assert key() == key()
    assert len({key(), key(scale=2.0), key(table="[1, 3]"), key(helper="x + 1")}) == 4
    assert key(other="object()") == key()  # not covered: that is what `version` is for


# -- access ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("least", [1, 64])
def test_rows_are_those_of_the_files_across_groups_and_files(tmp_path, stored, least):
    write_set(tmp_path / "data")
    access = make_access(
        tmp_path / "data", tmp_path if stored else None, least, columns=("number", "half", "text")
    )
    for first, count in ((0, 8), (25, 10), (95, 10), (99, 258), (150, 207), (356, 1)):
        rows = access.rows(first, count)
        assert rows["number"].tolist() == list(range(first, first + count))
        assert rows["half"].tolist() == [n / 2 for n in range(first, first + count)]
        assert rows["text"].tolist() == [f"row {n}".encode() for n in range(first, first + count)]
        assert set(rows) == {"number", "half", "text"}
        assert all(column.flags.c_contiguous for column in rows.values())


def test_many_windows_at_once_are_the_single_ones_stacked(tmp_path):
    write_set(tmp_path)
    access = make_access(tmp_path, columns=("number", "half"))
    firsts = np.array([0, 95, 28, 349, 28])
    rows = access.windows(firsts, 8)
    assert rows["number"].tolist() == [list(range(f, f + 8)) for f in firsts]
    assert rows["half"].shape == (5, 8)


def test_many_windows_of_texts_of_different_widths_are_stacked(tmp_path):
    write_set(tmp_path, [(9, None), (200, None)])  # "row 8" and "row 100"
    access = make_access(tmp_path, columns=("text",))
    rows = access.windows(np.array([0, 100, 6]), 4)
    assert rows["text"][2].tolist() == [b"row 6", b"row 7", b"row 8", b"row 9"]
    assert rows["text"][1].tolist() == [b"row 100", b"row 101", b"row 102", b"row 103"]


def test_only_the_requested_columns_are_decoded(tmp_path):
    seen = []

    def spy(table):
        seen.append(table.column_names)
        return plain_columns(table)

    write_set(tmp_path, [(100, 30)])
    make_access(tmp_path, prepare=spy).rows(31, 8)
    assert seen == [["number"]]


def test_a_file_that_changed_after_it_was_indexed_is_named(tmp_path):
    write_set(tmp_path, [(100, 30)])
    access = make_access(tmp_path)
    access.rows(0, 8)
    path = tmp_path / "shard_0000.parquet"
    os.utime(path, ns=(1, 1))
    assert access.rows(8, 8)["number"][0] == 8  # in memory
    with pytest.raises(DatasetError, match="changed") as caught:
        access.rows(31, 8)
    assert caught.value.file == str(path)


def test_a_damaged_row_group_is_an_error_that_names_the_file(tmp_path):
    write_set(tmp_path, [(5000, None)])
    path = tmp_path / "shard_0000.parquet"
    data = bytearray(path.read_bytes())
    data[4:2000] = bytes(1996)
    path.write_bytes(data)
    with pytest.raises(DatasetError) as caught:
        make_access(tmp_path).rows(0, 8)
    assert caught.value.file == str(path)


# -- cache -------------------------------------------------------------------------------------


def records(number, size=100):
    return Records.of({"a": np.full(size // 8, number)}), size


def test_the_cache_keeps_to_its_limit_and_drops_the_least_recently_used():
    made = []
    cache = RowGroupCache(lambda n: (made.append(n), records(n, 104))[1], limit=350)
    for number in (0, 1, 2, 0, 3, 0, 1):
        assert cache[number].rows(0, 1)["a"][0] == number
    assert made == [0, 1, 2, 3, 1]
    figures = cache.statistics()
    assert (figures.nbytes, figures.groups, figures.found, figures.made) == (312, 3, 2, 5)
    assert figures.peak <= 350


def test_one_thread_makes_a_row_group_while_others_wait_for_it_or_make_another():
    started, go = threading.Event(), threading.Event()
    made = []

    def make(number):
        made.append(number)
        if number == 0:
            started.set()
            assert go.wait(60)
        return records(number)

    cache = RowGroupCache(make, limit=1 << 20)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(cache.__getitem__, 0) for _ in range(3)]
        assert started.wait(60)
        assert cache[1] is not None  # those that need another do not wait
        assert not any(future.done() for future in waiting)
        go.set()
        groups = [future.result(60) for future in waiting]
    assert made == [0, 1]
    assert all(group is groups[0] for group in groups)


def test_a_row_group_that_failed_is_tried_again():
    tries = []

    def make(number):
        tries.append(number)
        if len(tries) == 1:
            raise OSError("gone")
        return records(number)

    cache = RowGroupCache(make, limit=1 << 20)
    with pytest.raises(OSError, match="gone"):
        cache[0]
    assert cache[0].rows(0, 1)["a"][0] == 0


def test_access_that_is_sent_to_another_process_starts_with_empty_memory(tmp_path):
    write_set(tmp_path)
    access = make_access(tmp_path, prepare=prepare)
    access.rows(0, 300)
    again = pickle.loads(pickle.dumps(access))
    assert again.statistics().groups == 0
    assert again.rows(95, 10)["pair"][:, 1].tolist() == list(range(-95, -105, -1))


# -- store -------------------------------------------------------------------------------------


def test_what_is_stored_is_not_decoded_again(tmp_path):
    write_set(tmp_path / "data")
    first = make_access(tmp_path / "data", tmp_path, 64)
    assert fill_store(first, lambda *_: None)
    assert first.store.missing() == []
    other = make_access(tmp_path / "data", tmp_path, 64, prepare=lambda table: 1 / 0)
    assert other.rows(90, 100)["number"].tolist() == list(range(90, 190))
    assert other.statistics().nbytes == 0  # mapped


def test_an_incomplete_row_group_is_made_again(tmp_path):
    write_set(tmp_path / "data", [(100, None)])
    fill_store(make_access(tmp_path / "data", tmp_path), lambda *_: None)
    (path,) = (tmp_path / "store").glob("*.rows")
    for damage in (path.read_bytes()[:-8], b"", b"x" * 200):
        path.write_bytes(damage)
        access = make_access(tmp_path / "data", tmp_path)
        assert access.rows(5, 2)["number"].tolist() == [5, 6]
        assert path.stat().st_size > 800


def test_row_groups_of_a_file_that_changed_are_removed(tmp_path):
    write_set(tmp_path / "data", [(100, 50), (60, None)])
    fill_store(make_access(tmp_path / "data", tmp_path), lambda *_: None)
    before = {path.name for path in (tmp_path / "store").glob("*.rows")}
    os.utime(tmp_path / "data" / "shard_0000.parquet", ns=(5, 5))
    fill_store(make_access(tmp_path / "data", tmp_path), lambda *_: None)
    after = {path.name for path in (tmp_path / "store").glob("*.rows")}
    assert len(before) == len(after) == 3
    assert len(before & after) == 1


def test_a_store_keeps_to_its_limit(tmp_path):
    write_set(tmp_path / "data", [(1000, 100)])
    access = make_access(tmp_path / "data", tmp_path, limit=3 * 900, cache_bytes=0)
    for first in range(0, 1000, 50):
        assert access.rows(first, 50)["number"].tolist() == list(range(first, first + 50))
        assert access.store.nbytes <= 3 * 900
    assert access.store.remove() > 0
    assert access.store.nbytes == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_where_nothing_can_be_stored_rows_are_kept_in_memory_with_one_warning(
    tmp_path, monkeypatch, caplog, code
):
    write_set(tmp_path / "data")

    def full(fd):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    access = make_access(tmp_path / "data", tmp_path)
    assert not fill_store(access, lambda *_: None)
    assert access.rows(95, 10)["number"].tolist() == list(range(95, 105))
    assert access.rows(195, 10)["number"].tolist() == list(range(195, 205))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert str(tmp_path / "store") in warning
    assert list((tmp_path / "store").glob("*.rows*")) == []


def test_worker_processes_fill_a_store(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.formats.parquet.rows._IN_PROCESS_ROWS", 0)
    write_set(tmp_path / "data")
    access = make_access(tmp_path / "data", tmp_path, prepare=prepare)
    done = []
    assert fill_store(access, lambda rows, size: done.append((rows, size)), workers=2)
    assert sum(rows for rows, _ in done) == 357
    assert sum(size for _, size in done) == 357 * 16
    assert access.rows(95, 10)["pair"][:, 0].tolist() == list(range(95, 105))


def test_a_store_is_filled_by_as_many_processes_as_fit_in_a_quarter_of_free_memory(
    tmp_path, monkeypatch
):
    write_set(tmp_path / "data")
    access = make_access(tmp_path / "data", tmp_path)
    monkeypatch.setattr(module, "allowed_cpus", lambda: 16)
    for free, expected in [(64 << 30, 16), (1 << 30, 3), (1 << 20, 1)]:
        monkeypatch.setattr(module, "available_memory", lambda free=free: free)
        assert module._workers(access, access.store.missing()) == expected
    assert module._workers(access, []) == 1
