"""Batches from rows in memory."""

from ipaddress import ip_address
from itertools import islice

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.network_plain import memory_batches, read_rows
from headrace.errors import DataError, UsageError
from headrace.recipes.network import FIELDS, LENGTH, decode, prepare
from headrace.testing import synthesize_network
from headrace.testing.network import shard_table


@pytest.fixture(scope="module")
def columns():
    return prepare(shard_table(0, 0, 64 * 10 + 30))


def test_every_epoch_has_every_window_once_in_another_order(columns):
    four = list(islice(memory_batches(columns, 5), 4))
    assert all(set(batch) == set(FIELDS) for batch in four)
    assert all(batch["inputs"].shape == (5, LENGTH) for batch in four)
    pairs = [set(map(bytes, columns["bytes"][64 * i : 64 * (i + 1), :32])) for i in range(10)]
    order = []
    for row in np.concatenate([batch["inputs"] for batch in four]):
        ends = {
            b"".join(ip_address(end).packed.ljust(16, b"\0") for end in (one.src, one.dst))
            for one in decode(row)
        }
        order += [number for number, pair in enumerate(pairs) if ends <= pair]
    assert sorted(order[:10]) == sorted(order[10:]) == list(range(10))
    assert order[:10] != order[10:]


def test_batches_can_be_entered_anywhere_and_depend_on_the_seed(columns):
    batches = list(islice(memory_batches(columns, 3), 6))
    later = next(memory_batches(columns, 3, start=4))
    other = next(memory_batches(columns, 3, seed=1))
    assert np.array_equal(later["inputs"], batches[4]["inputs"])
    assert not np.array_equal(other["inputs"], batches[0]["inputs"])


def test_fewer_rows_than_a_window_are_one_window():
    few = prepare(shard_table(0, 0, 5))
    batch = next(memory_batches(few, 2))
    assert 5 * 12 <= batch["inputs_segmentation"][0].sum() <= 5 * 47
    with pytest.raises(UsageError, match="batch_size is 0"):
        next(memory_batches(few, 0))


def test_a_folder_is_read_file_by_file_and_a_bad_row_is_found(tmp_path):
    synthesize_network(tmp_path, rows=100, files={"train": 2, "test": 1})
    rows = read_rows(tmp_path / "train")
    assert len(rows["time"]) == 200
    with pytest.raises(UsageError, match=r"no Parquet files in .*such as data/train"):
        read_rows(tmp_path)
    bad = shard_table(0, 0, 3).drop_columns(["dst_addr"]).append_column("dst_addr", [["1.1"] * 3])
    pq.write_table(bad, tmp_path / "train/shard_0001.parquet")
    with pytest.raises(DataError, match=r"dst_addr of row 0 is '1.1'.*file .*shard_0001.parquet"):
        read_rows(tmp_path / "train")
    assert len(read_rows(tmp_path / "train", bad_addresses="empty")["time"]) == 103
