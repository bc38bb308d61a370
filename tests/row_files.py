"""Small Parquet files whose every value says which row it is, and what tests do with their rows."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


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


def transform(rows, window, epoch, seed, out_rows):
    """Which rows came, for which window, and chance that depends on that alone."""
    numbers = out_rows["numbers"]
    count = len(rows["number"])
    numbers[:count] = rows["number"]
    numbers[count:] = -1
    out_rows["what"][:] = window, epoch, seed
    out_rows["noise"][...] = np.random.default_rng((seed, epoch, window)).random()


def transform_many(rows, windows, epochs, seed, out_rows):
    """The same for many windows at once."""
    for place, (window, epoch) in enumerate(zip(windows, epochs, strict=True)):
        one = {name: column[place] for name, column in rows.items()}
        into = {name: array[place, ...] for name, array in out_rows.items()}
        transform(one, int(window), int(epoch), seed, into)


def fail_on_13(rows, window, epoch, seed, out_rows):
    """A transform with a fault."""
    if window == 13:
        raise ZeroDivisionError("thirteen")
    transform(rows, window, epoch, seed, out_rows)
