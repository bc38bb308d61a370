"""Network measurements in Parquet files: the schema, the same rows every time, clear errors."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from headrace.cli.main import main
from headrace.errors import DatasetError, UnknownDatasetError, UsageError
from headrace.testing import network, synthesize_network

FEW = {"train": 3, "test": 2}


def tables(root):
    return {
        str(path.relative_to(root)): pq.read_table(path) for path in sorted(root.rglob("*.parquet"))
    }


def test_files_have_the_published_names_schema_and_compression(tmp_path):
    train, test = synthesize_network(tmp_path, rows=20)
    assert (train.name, train.files, train.rows) == ("train", 180, 3600)
    assert (test.name, test.files, test.rows) == ("test", 20, 400)
    for made in (train, test):
        names = sorted(path.name for path in made.path.iterdir())
        assert names == [f"shard_{i:04d}.parquet" for i in range(made.files)]
        assert made.bytes == sum(path.stat().st_size for path in made.path.iterdir())
    file = pq.ParquetFile(train.path / "shard_0000.parquet")
    schema = file.schema_arrow
    needed = {
        "event_time": pa.timestamp("ns", tz="UTC"),
        "src_addr": pa.string(),
        "dst_addr": pa.string(),
        "ip_version": pa.int64(),
        "rtt": pa.float64(),
    }
    assert {name: schema.field(name).type for name in needed} == needed
    assert set(schema.names) - set(needed) == {"probe_id", "kind"}
    assert file.metadata.row_group(0).column(0).compression == "SNAPPY"


def test_measurements_are_believable(tmp_path):
    synthesize_network(tmp_path, rows=20_000, files=FEW, workers=1)
    made = tables(tmp_path)
    rows = pa.concat_tables(made[name] for name in sorted(made, key=lambda n: "test" in n))
    time = rows["event_time"].cast(pa.int64()).to_numpy()
    assert (np.diff(time) >= 0).all()
    rtt = rows["rtt"].to_numpy()
    answered = np.log(rtt[rtt > 0])
    assert 0.02 < (rtt == -1).mean() < 0.04
    assert 20 < np.exp(answered.mean()) < 200
    six = rows["ip_version"].to_numpy() == 6
    assert 0.25 < six.mean() < 0.35
    for name, few, many in (("src_addr", 200, 700), ("dst_addr", 3000, 11000)):
        column = rows[name].combine_chunks()
        assert 0 < column.null_count < 0.02 * len(column)
        assert few < len(pc.unique(column)) < many
        colons = pc.match_substring(column, ":").fill_null(True).to_numpy(zero_copy_only=False)
        assert colons[six].all()


def test_workers_and_row_groups_change_no_row_and_another_seed_changes_all(tmp_path, monkeypatch):
    monkeypatch.setattr(network, "_FEW_ROWS", 0)
    for name, workers, seed, group in (("one", 1, 0, 8), ("two", 2, 0, 50), ("other", 1, 1, 50)):
        synthesize_network(
            tmp_path / name, rows=50, row_group=group, files=FEW, seed=seed, workers=workers
        )
    one, two, other = (tables(tmp_path / name) for name in ("one", "two", "other"))
    assert one.keys() == two.keys() == other.keys()
    assert all(one[name].equals(two[name]) for name in one)
    assert not any(one[name].equals(other[name]) for name in one)
    assert pq.ParquetFile(tmp_path / "one/train/shard_0000.parquet").num_row_groups == 7


def test_one_split_alone_has_the_rows_it_has_beside_the_other(tmp_path):
    synthesize_network(tmp_path / "both", rows=10, files=FEW)
    (test,) = synthesize_network(tmp_path / "alone", rows=10, files=FEW, only=["test"])
    assert not (tmp_path / "alone/train").exists()
    assert test.path == tmp_path / "alone/test"
    both = tables(tmp_path / "both")
    assert all(table.equals(both[name]) for name, table in tables(tmp_path / "alone").items())


def test_what_was_synthesized_is_replaced_and_nothing_else(tmp_path):
    synthesize_network(tmp_path, rows=10, files=FEW)
    synthesize_network(tmp_path, rows=10, files={"train": 1, "test": 1})
    assert len(tables(tmp_path)) == 2
    pq.write_table(pa.table({"mine": [1]}), tmp_path / "test/shard_0000.parquet")
    with pytest.raises(DatasetError, match=re.escape(str(tmp_path / "test"))):
        synthesize_network(tmp_path, rows=10, files=FEW)
    (tmp_path / "test/shard_0000.parquet").write_text("notes")
    with pytest.raises(DatasetError, match=re.escape(str(tmp_path / "test"))):
        synthesize_network(tmp_path, rows=10, files=FEW)
    assert (tmp_path / "test/shard_0000.parquet").read_text() == "notes"


def test_wrong_numbers_and_names_are_refused(tmp_path):
    for wrong in ({"rows": 0}, {"row_group": 0}, {"workers": 0}, {"only": []}):
        with pytest.raises(UsageError):
            synthesize_network(tmp_path, **wrong)
    with pytest.raises(UnknownDatasetError, match="'valid'.*train, test"):
        synthesize_network(tmp_path, only="valid")
    assert not list(tmp_path.iterdir())


def test_the_command_writes_them_and_says_so(tmp_path, capsys):
    out = str(tmp_path / "data")
    assert main(["synth", out, "--preset", "network", "--rows", "5", "--only", "test"]) == 0
    assert "20 files, 100 rows" in capsys.readouterr().out
    command = ["synth", out, "--preset", "network", "--rows", "5", "--only", "test", "--json"]
    assert main(command) == 0
    (made,) = json.loads(capsys.readouterr().out)["datasets"]
    assert (made["name"], made["rows"]) == ("test", 100)
    assert main(["synth", out, "--rows", "5"]) == 2
    assert "--rows" in capsys.readouterr().err
