"""`headrace index` and `headrace inspect` on folders of Parquet files."""

import json

import pytest

from headrace.cli.main import main
from tests.row_files import write_set


@pytest.fixture
def data(tmp_path):
    return write_set(tmp_path / "train")


def test_index_reads_the_footers_once(data, capsys):
    assert main(["index", str(data)]) == 0
    first = capsys.readouterr().out
    assert "4 footers read" in first
    assert "357" in first
    assert main(["index", str(data), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["tables"]
    assert (one["files"], one["row_groups"], one["rows"], one["read_files"]) == (4, 15, 357, 0)


def test_inspect_shows_rows_row_groups_and_columns(data, capsys):
    assert main(["inspect", str(data)]) == 0
    out = capsys.readouterr().out
    assert "357 rows in 15 row groups of 0 to 200; 1 file without rows" in out
    assert "half    double" in out
    assert "1 other schemas" in out  # the file without rows
    assert main(["inspect", str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "parquet"


def test_a_set_that_cannot_be_indexed_is_told_and_fails_the_command(data, capsys):
    (data / "shard_0002.parquet").write_bytes(b"no")
    assert main(["index", str(data)]) == 1
    err = capsys.readouterr().err
    assert "b'no'" in err
    assert str(data / "shard_0002.parquet") in err


def test_datasets_and_tables_may_be_given_together(data, bridge, capsys):
    assert main(["index", str(data), str(bridge)]) == 0
    out = capsys.readouterr().out
    assert "bridge 0.1.0" in out
    assert "357" in out
