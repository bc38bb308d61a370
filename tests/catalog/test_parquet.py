"""The index of a set of Parquet files: stored, checked, renewed; and unusual files."""

import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.catalog.shards import Quiet
from headrace.errors import DatasetError, UnknownFieldError
from tests.row_files import write_rows, write_set


@pytest.fixture
def data(tmp_path):
    return write_set(tmp_path / "data")


def test_it_knows_files_row_groups_and_columns(data):
    catalog = hr.ParquetCatalog.open(data)
    assert [file.group_rows for file in catalog.files] == [
        (30, 30, 30, 10),
        (0,),
        (7, 7, 7, 7, 7, 7, 7, 7, 1),
        (200,),
    ]
    assert (catalog.rows, catalog.groups) == (357, 15)
    assert dict(catalog.columns) == {
        "number": "int64",
        "half": "double",
        "text": "string",
        "unused": "string",
    }


def test_footers_are_read_once(data, monkeypatch):
    assert len(hr.ParquetCatalog.open(data).changed) == 4
    monkeypatch.setattr("headrace.catalog.parquet.read_footer", None)
    again = hr.ParquetCatalog.open(data)
    assert again.changed == ()
    assert again.rows == 357
    assert again.index == data / ".headrace" / "parquet.json"


def test_a_folder_may_be_named_in_another_way_or_be_moved(data, monkeypatch):
    first = hr.ParquetCatalog.open(data)
    monkeypatch.setattr("headrace.catalog.parquet.read_footer", None)
    monkeypatch.chdir(data.parent)
    assert hr.ParquetCatalog.open("data").changed == ()
    shutil.move(data, data.parent / "moved")
    moved = hr.ParquetCatalog.open(data.parent / "moved")
    assert moved.changed == ()
    assert moved.digest() == first.digest()


def test_only_files_that_changed_are_indexed_again_and_are_named(data):
    hr.ParquetCatalog.open(data)
    write_rows(data / "shard_0002.parquet", 0, 40, 40)
    write_rows(data / "shard_0009.parquet", 0, 5)
    progress = Quiet()
    catalog = hr.ParquetCatalog.open(data, progress=progress)
    assert [os.path.basename(path) for path in catalog.changed] == [
        "shard_0002.parquet",
        "shard_0009.parquet",
    ]
    assert catalog.rows == 345
    assert progress.notes == [
        f"{data}: changed since it was indexed, indexed again: shard_0002.parquet"
    ]


def test_a_file_that_is_gone_is_gone_from_the_index(data):
    hr.ParquetCatalog.open(data)
    (data / "shard_0003.parquet").unlink()
    assert hr.ParquetCatalog.open(data).rows == 157
    assert hr.ParquetCatalog.open(data).changed == ()


def test_an_index_that_cannot_be_read_is_made_again(data):
    index = hr.ParquetCatalog.open(data).index
    for damage in (b"", b"{}", b"[1]", b'{"format_version": 0}', b'{"format_version": 1}'):
        index.write_bytes(damage)
        assert len(hr.ParquetCatalog.open(data).changed) == 4


def test_where_the_folder_cannot_be_written_the_index_lies_in_the_cache(data, tmp_path):
    data.chmod(0o555)
    try:
        catalog = hr.ParquetCatalog.open(data)
        assert (tmp_path / "headrace-cache") in catalog.index.parents
        assert hr.ParquetCatalog.open(data).changed == ()
    finally:
        data.chmod(0o755)


def test_patterns_lists_and_folders_of_folders_are_sets_too(data, tmp_path):
    assert hr.ParquetCatalog.open(f"{data}/shard_000[02].parquet").rows == 157
    listed = hr.ParquetCatalog.open([data / "shard_0002.parquet", data / "shard_0000.parquet"])
    assert [file.rows for file in listed.files] == [57, 100]
    (tmp_path / "year" / "month=1").mkdir(parents=True)
    shutil.copy(data / "shard_0002.parquet", tmp_path / "year" / "month=1")
    (tmp_path / "year" / "_temporary.parquet").write_bytes(b"being written")
    assert hr.ParquetCatalog.open(tmp_path / "year").rows == 57


def test_columns_that_are_not_there_are_named_with_those_that_are(data):
    with pytest.raises(UnknownFieldError, match="'rtt'.*number.*half.*text.*unused"):
        hr.ParquetCatalog.open(data).select(["number", "rtt"])


def test_a_file_with_another_schema_is_named(data):
    table = pq.read_table(data / "shard_0002.parquet").rename_columns(
        ["id", "half", "text", "unused"]
    )
    pq.write_table(table, data / "shard_0002.parquet")
    catalog = hr.ParquetCatalog.open(data)
    assert catalog.select(["half"]) == (("half", "double"),)  # what is needed is there
    with pytest.raises(DatasetError, match=r"'number'.*id, half, text, unused.*shard_0002"):
        catalog.select(["number"])


def test_a_file_without_rows_may_have_any_columns(data):
    pq.write_table(pa.table({"other": pa.array([], pa.null())}), data / "shard_0001.parquet")
    assert len(hr.ParquetCatalog.open(data).select()) == 4


def test_a_column_of_another_type_in_one_file_is_named(data):
    write_rows(data / "shard_0002.parquet", 0, 9, half=pa.array(["x"] * 9))
    with pytest.raises(DatasetError, match=r"'half'.*string.*double"):
        hr.ParquetCatalog.open(data).select()


@pytest.mark.parametrize("content", [b"", b"time,rtt\n1,2\n", None, b"PAR1" + bytes(100) + b"PAR1"])
def test_a_file_that_is_not_a_whole_parquet_file_is_named(data, content):
    path = data / "shard_0002.parquet"
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    with pytest.raises(DatasetError) as caught:
        hr.ParquetCatalog.open(data)
    assert caught.value.file == str(path)
    assert caught.value.remedy


def test_several_bad_files_are_named_together(data):
    for name in ("shard_0000.parquet", "shard_0003.parquet"):
        (data / name).write_bytes(b"")
    with pytest.raises(DatasetError, match=r"2 of 4.*0000.*0003"):
        hr.ParquetCatalog.open(data)


def test_a_folder_without_parquet_files_or_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DatasetError, match="Parquet"):
        hr.ParquetCatalog.open(tmp_path)
    with pytest.raises(DatasetError, match=r"gone\.parquet"):
        hr.ParquetCatalog.open(tmp_path / "gone.parquet")
