"""Small Parquet files whose every value says which row it is, and what tests do with their rows."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from headrace.loader.rows.work import WindowDraw


def write_rows(path, first, rows, group=None, **columns):
    """Rows `first`, `first + 1`, ... of the whole set, in groups of so many."""
    number = np.arange(first, first + rows)
    table = pa.table(
        {
            "number": number,
            "half": number / 2,
            "text": [f"row {n}" for n in number.tolist()],
            "unused": ["x" * 50] * rows,
            **columns,
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group or max(1, rows))
    return rows


def write_set(folder, files=((100, 30), (0, None), (57, 7), (200, None)), **columns):
    """One file for each (rows, rows of a group); rows are numbered through all of them."""
    first = 0
    for number, (rows, group) in enumerate(files):
        first += write_rows(folder / f"shard_{number:04d}.parquet", first, rows, group, **columns)
    return folder


def prepare(table):
    """Numbers twice, and texts as bytes."""
    number = table["number"].to_numpy()
    return {"number": number, "pair": np.stack([number, -number], 1).astype(np.int32)}


OUTPUTS = {"numbers": ((8,), "int64"), "what": ((3,), "int64"), "noise": ((), "float64")}


def which(rows, out, draw):
    """Which rows came, for which window, and chance that depends on that alone."""
    numbers = out["numbers"]
    count = len(rows["number"])
    numbers[:count] = rows["number"]
    numbers[count:] = -1
    out["what"][:] = draw.window, draw.epoch, draw.seed
    out["noise"][...] = np.random.default_rng(draw).random()


def which_of_many(rows, out, draw):
    """The same for many windows at once."""
    for place, (window, epoch) in enumerate(zip(draw.window, draw.epoch, strict=True)):
        one = {name: column[place] for name, column in rows.items()}
        into = {name: array[place, ...] for name, array in out.items()}
        which(one, into, WindowDraw(draw.seed, int(epoch), int(window)))


def fail_on_13(rows, out, draw):
    """A function with a fault."""
    if draw.window == 13:
        raise ZeroDivisionError("thirteen")
    which(rows, out, draw)


transform = hr.RowTransform(which, outputs=OUTPUTS)
transform_many = hr.RowTransform(which_of_many, outputs=OUTPUTS, many=True)


def assert_same(batches, others):
    """Two lists of batches hold the same names and values."""
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            np.testing.assert_array_equal(batch[name], other[name])
