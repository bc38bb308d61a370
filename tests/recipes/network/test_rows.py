"""A folder of files to tokens: the loader, the same through Grain, and rows that are bad."""

import json
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.network_plain import Row, reference_fields
from headrace.errors import DataError, UnknownFieldError, UsageError
from headrace.recipes.network import (
    FIELDS,
    LENGTH,
    prepare,
    token_loader,
    token_pipeline,
    token_rows,
)
from headrace.recipes.network import rows as recipe_rows
from headrace.testing.network import shard_table
from tests.row_files import assert_same

SIZES = [(700, 300), (0, 100), (50, 50), (1000, 1 << 20)]  # rows of a file, and of its row groups
WINDOWS = 1750 // 64
SEED = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """27 windows of 64 rows over four files, one of them empty. Do not change it."""
    folder = tmp_path_factory.mktemp("network") / "train"
    folder.mkdir()
    for number, (rows, group) in enumerate(SIZES):
        table = shard_table(0, number, rows) if rows else shard_table(0, 0, 1).slice(1)
        pq.write_table(table, folder / f"shard_{number:04d}.parquet", row_group_size=group)
    return folder


@pytest.fixture(scope="module")
def made(folder):
    """All rows, as the twin takes them."""
    tables = [pq.read_table(file) for file in sorted(folder.glob("*.parquet"))]
    table = pa.concat_tables(tables).set_column(
        1, "event_time", pa.concat_tables(tables)["event_time"].cast("int64")
    )
    names = ("event_time", "src_addr", "dst_addr", "ip_version", "rtt")
    return [Row(*row) for row in zip(*(table[n].to_pylist() for n in names), strict=True)]


def take(batches, count):
    return [
        {name: np.array(values) for name, values in batch.items()}
        for batch in islice(batches, count)
    ]


def plain(folder, count, batch_size=6, **options):
    settings = {"seed": SEED, "workers": 0, **options}
    with token_loader(folder, batch_size=batch_size, **settings) as loader:
        return take(loader, count)


@pytest.mark.parametrize("shuffle", ["exact", "local"])
def test_the_loader_gives_the_tokens_of_the_plain_twin_in_every_epoch(folder, made, shuffle):
    with token_loader(folder, batch_size=6, seed=SEED, shuffle=shuffle, workers=0) as loader:
        epochs, windows = loader.next_windows(60)
        batches = take(loader, 10)
    assert sorted(windows[:WINDOWS]) == list(range(WINDOWS))
    assert set(epochs) == {0, 1, 2}
    for draw in range(0, 60, 3):
        epoch, window = int(epochs[draw]), int(windows[draw])
        rows = made[64 * window : 64 * (window + 1)]
        expected = reference_fields(rows, window, epoch, SEED)
        batch = batches[draw // 6]
        assert set(batch) == set(FIELDS)
        for name in FIELDS:
            assert batch[name].dtype == np.int32
            assert batch[name][draw % 6].tolist() == expected[name], (draw, name)


def test_memory_instead_of_a_store_gives_the_same(folder):
    rows = token_rows(folder, store=False)
    assert token_rows(folder).stored
    assert not rows.stored
    assert_same(plain(rows, 8), plain(folder, 8))


def test_worker_processes_give_the_same(folder):
    threads = token_loader(folder, batch_size=6, seed=SEED, workers=0)
    workers = token_loader(folder, batch_size=6, seed=SEED, workers=2)
    with threads, workers:
        started = 0
        for _ in range(20_000):
            assert_same(take(workers, 1), take(threads, 1))
            started += len(workers.statistics().engine.processes) == 2
            if started == 12:
                break
        assert started == 12


def test_fewer_rows_than_a_window_are_one_window_with_padding(tmp_path):
    pq.write_table(shard_table(0, 0, 5), tmp_path / "shard_0000.parquet")
    (batch,) = plain(tmp_path, 1, batch_size=2)
    real = batch["inputs_segmentation"].sum(axis=1)
    assert (real >= 5 * 12).all()
    assert (real <= 5 * 47).all()
    assert not batch["inputs"][0, real[0] :].any()
    assert batch["inputs_position"][1].tolist() == list(range(LENGTH))


# -- bad rows ----------------------------------------------------------------------------------


def spoilt(folder, to, column, row, value):
    """A copy of the files with one value of the first changed."""
    to.mkdir()
    for file in folder.glob("*.parquet"):
        table = pq.read_table(file)
        if file.name == "shard_0000.parquet":
            values = table[column].to_pylist()
            values[row] = value
            place = table.column_names.index(column)
            table = table.set_column(place, column, pa.array(values, table[column].type))
        pq.write_table(table, to / file.name, row_group_size=100)
    return to


@pytest.mark.parametrize("store", [True, False])
def test_a_bad_row_is_named_with_its_file_and_its_place_in_it(folder, tmp_path, store):
    bad = spoilt(folder, tmp_path / "train", "dst_addr", 345, "10.0.0.300")
    words = r"dst_addr of row 345 is '10.0.0.300': no IP address \[file .*shard_0000.parquet"
    with pytest.raises(DataError, match=words):
        plain(token_rows(bad, store=store), 10)
    mended = token_rows(bad, bad_addresses="empty", store=store)
    assert not mended[345 // 64]["bytes"][345 % 64, 16:32].any()
    assert len(plain(mended, 5)) == 5


def test_what_is_stored_of_bad_rows_as_empty_is_not_taken_for_the_strict_ones(folder, tmp_path):
    bad = spoilt(folder, tmp_path / "train", "src_addr", 0, "nowhere")
    assert plain(token_rows(bad, bad_addresses="empty"), 1)
    with pytest.raises(DataError, match="src_addr of row 0 is 'nowhere'"):
        plain(bad, 1)
    with pytest.raises(UsageError, match="bad_addresses is 'drop'"):
        token_rows(bad, bad_addresses="drop")


def test_the_folder_above_the_splits_is_refused_lest_training_sees_the_test_files(folder):
    words = r"no Parquet files in '.*' itself.*such as data/train"
    with pytest.raises(UsageError, match=words):
        token_rows(folder.parent)
    assert len(token_rows(f"{folder.parent}/tr*/*.parquet")) == WINDOWS


def test_a_missing_column_is_named_and_those_there_are_listed(tmp_path):
    table = shard_table(0, 0, 100).rename_columns(
        ["probe_id", "event_time", "source", "dst_addr", "ip_version", "rtt", "kind"]
    )
    pq.write_table(table, tmp_path / "shard_0000.parquet")
    with pytest.raises(UnknownFieldError, match=r"src_addr.*source"):
        token_rows(tmp_path)


def test_rows_are_prepared_piece_by_piece_with_the_same_result(monkeypatch):
    table = shard_table(0, 0, 250)
    whole = prepare(table)
    monkeypatch.setattr(recipe_rows, "_AT_ONCE", 100)
    pieces = recipe_rows.PrepareRows()(table)
    assert pieces.keys() == whole.keys()
    for name, values in whole.items():
        assert pieces[name].dtype == values.dtype
        np.testing.assert_array_equal(pieces[name], values)
    spoil = table.set_column(2, "src_addr", [[None] * 230 + ["x"] + [None] * 19])
    with pytest.raises(DataError, match=r"src_addr of row 1,230 is 'x'"):
        recipe_rows.PrepareRows()(spoil, first_row=1000)


# -- Grain -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default")  # what Grain warns of is its own
class TestGrain:
    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("grain")

    def test_threads_and_two_worker_processes_give_the_loaders_batches_and_resume(self, folder):
        expected = plain(folder, 12)
        threads = iter(token_pipeline(folder, 6, seed=SEED, num_threads=2))
        assert_same(take(threads, 12), expected)
        workers = iter(token_pipeline(folder, 6, seed=SEED, num_workers=2))
        assert_same(take(workers, 5), expected[:5])
        state = json.loads(json.dumps(workers.get_state()))  # as a checkpoint keeps it
        workers.close()
        threads.set_state(state)
        assert_same(take(threads, 7), expected[5:])

    def test_grains_own_iterator_state_resumes_exactly(self, folder):
        expected = plain(folder, 9)
        dataset = token_pipeline(folder, 6, seed=SEED, num_threads=2).plain()
        batches = iter(dataset)
        assert_same(take(batches, 4), expected[:4])
        again = iter(dataset)
        again.set_state(batches.get_state())
        assert_same(take(again, 5), expected[4:])

    def test_three_hosts_go_on_where_two_stopped(self, folder):
        def hosts(world, batch_size):
            options = {"seed": SEED, "num_threads": 1, "world_size": world}
            return [
                iter(token_pipeline(folder, batch_size, rank=r, **options)) for r in range(world)
            ]

        two = hosts(2, 3)
        found = [next(host)["inputs"] for _ in range(3) for host in two]
        three = hosts(3, 2)
        for host in three:
            host.set_state(two[1].get_state())
        found += [next(host)["inputs"] for _ in range(4) for host in three]
        whole = np.concatenate([batch["inputs"] for batch in plain(folder, 7)])
        np.testing.assert_array_equal(np.concatenate(found), whole)
