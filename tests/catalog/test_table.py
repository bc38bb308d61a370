"""The Arrow table: one batch or many, the rows are the same."""

import numpy as np
import pytest

import headrace as hr
from headrace.catalog import table as table_module
from headrace.catalog.table import EpisodeTable


@pytest.fixture
def tables(bridge, monkeypatch):
    """The same catalog as one batch and as many."""
    one = hr.Catalog.open(bridge, cache=True)
    table = EpisodeTable(one.folder / one.manifest.table)
    monkeypatch.setattr(table_module, "BATCH_BYTES", 1)
    path = one.folder / "many.arrow"
    rows = [batch for row in range(table.rows) for batch in table.slice(row, 1)]
    table_module.write_table(path, table.batches[0].schema, rows)
    return table, EpisodeTable(path)


def test_columns_and_ends_do_not_depend_on_how_rows_are_batched(tables):
    one, many = tables
    assert len(one.batches) == 1
    assert len(many.batches) == many.rows == one.rows > 2
    for name in ("shard", "offset", "length", "steps", "start:steps/observation/image"):
        np.testing.assert_array_equal(one.column(name), many.column(name))
        assert [many.value(name, r) for r in range(many.rows)] == one.column(name).tolist()
    key = "steps/observation/image"
    for row in range(one.rows):
        np.testing.assert_array_equal(one.ends(key, row), many.ends(key, row))
    assert one.total_ends(key) == many.total_ends(key)


def test_slices_cross_batches(tables):
    one, many = tables
    ours = [b.column("offset").to_pylist() for b in many.slice(1, 2)]
    assert [v for chunk in ours for v in chunk] == one.column("offset")[1:3].tolist()


def test_a_row_that_is_not_there_is_an_index_error(tables):
    for table in tables:
        with pytest.raises(IndexError):
            table.value("offset", table.rows)


def test_the_columns_are_pages_of_the_file_and_not_copies(tables):
    one, _ = tables
    assert not one.column("offset").flags.owndata
    assert not one.ends("steps/observation/image", 0).flags.writeable


def test_a_dataset_without_episodes_has_an_empty_table(bridge):
    import json

    info = json.loads((bridge / "dataset_info.json").read_text())
    info["splits"] = []
    (bridge / "dataset_info.json").write_text(json.dumps(info))
    for shard in bridge.glob("*.tfrecord-*"):
        shard.unlink()
    catalog = hr.Catalog.open(bridge)
    assert len(catalog) == 0
    assert catalog.steps.sum() == 0
    with pytest.raises(hr.SplitError):
        catalog.episodes("train")
