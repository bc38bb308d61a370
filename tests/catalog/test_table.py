"""The Arrow table: one batch or many, the rows are the same."""

from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

import headrace as hr
from headrace import errors
from headrace.catalog import table as table_module
from headrace.catalog.table import EpisodeTable
from headrace.formats.example import blob_place


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
    with pytest.raises(errors.SplitError):
        catalog.episodes("train")


def test_places_of_many_frames_equal_their_plain_twin(tables, bridge):
    key = "steps/observation/image"
    rng = np.random.default_rng(0)
    for table in tables:
        rows = rng.integers(0, table.rows, 200)
        steps = rng.integers(-1, 9, (200, 3))
        places = table.blob_places(key, rows, steps)
        for row, ts, *place in zip(rows, steps, *places, strict=True):
            ends, crcs = table.ends(key, int(row)), table.crcs(key, int(row))
            for t, o, n, crc in zip(ts, *place, strict=True):
                if 0 <= t < len(ends):
                    assert (o, n) == blob_place(int(ends[t - 1]) if t else 0, int(ends[t]))
                    assert crc == crcs[t]
                else:
                    assert (n, crc) == (-1, -1)


def test_a_catalog_places_many_frames_as_it_places_one(oxe):
    for name in ("bridge/0.1.0", "uiuc_d3field/0.1.0"):
        catalog = hr.Catalog.open(oxe / name)
        episodes = np.arange(len(catalog)).repeat(2)
        steps = np.tile([[0, 3], [2, 5]], (len(catalog), 1))
        shards, offsets, lengths, crcs = catalog.places(episodes, steps)
        for row in range(len(episodes)):
            for column in range(2):
                one = catalog.place(int(episodes[row]), int(steps[row, column]))
                path, stamp = catalog.shard_file(int(shards[row]))
                assert (one.path, one.stamp) == (path, stamp)
                assert (one.offset, one.length) == (offsets[row, column], lengths[row, column])
                data = Path(path).read_bytes()[one.offset : one.offset + one.length]
                assert crc32c(data) == crcs[row, column]
