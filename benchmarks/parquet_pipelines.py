"""The pipelines that `parquet.py` compares: each gives endless batches, or a rate by itself.

`python benchmarks/parquet_pipelines.py NAME DATA ...` runs one in a process of its own and prints
what it measured as JSON. All use as many threads or processes as there are CPUs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.engine.machine import allowed_cpus, keep_freed_memory
from headrace.recipes.network import (
    COLUMNS,
    FIELDS,
    LENGTH,
    PREPARED,
    ROWS,
    prepare,
    token_loader,
    token_pipeline,
    token_rows,
    tokenize_windows,
)
from network_plain import Row, reference_fields

TOGETHER = 128  # windows a call of the limit, as good as 256; 64 are slower
SHUFFLED = 1024  # windows in the shuffle buffer of Grain's reader
CACHED_FILES = 10  # what the design with an LRU of files was tried with


def files_of(data: Path) -> list[str]:
    return [str(file) for file in sorted(data.glob("*.parquet"))]


# -- headrace ------------------------------------------------------------------------------------


@contextmanager
def loader(data: Path, batch: int, shuffle: str = "exact", store: bool = True) -> Iterator[Any]:
    with token_loader(token_rows(data, store=store), batch_size=batch, shuffle=shuffle) as batches:
        yield batches


@contextmanager
def grain_output(data: Path, batch: int, **options: Any) -> Iterator[Any]:
    with closing(iter(token_pipeline(data, batch, **options))) as batches:
        yield batches


# -- (a) a dict for every row, an LRU of files, Grain's threads ----------------------------------


class RowFiles:
    """Files as tables, the last few kept, behind one lock; rows are dicts."""

    def __init__(self, files: Sequence[str], cached: int) -> None:
        self._files, self._cached = files, cached
        self._ends = np.cumsum([pq.read_metadata(file).num_rows for file in files])
        self._kept: OrderedDict[int, pa.Table] = OrderedDict()
        self._lock = threading.Lock()
        if cached >= len(files):  # eager
            for number in range(len(files)):
                self._table(number)

    def __len__(self) -> int:
        return max(1, (int(self._ends[-1]) - ROWS) // ROWS + 1)

    def __getitem__(self, window: int) -> tuple[int, list[dict[str, Any]]]:
        first, found = ROWS * window, []
        while len(found) < ROWS:
            row = first + len(found)
            file = int(np.searchsorted(self._ends, row, side="right"))
            begin = row - (int(self._ends[file - 1]) if file else 0)
            found += self._table(file).slice(begin, ROWS - len(found)).to_pylist()
        return window, found

    def _table(self, file: int) -> pa.Table:
        with self._lock:
            if file in self._kept:
                self._kept.move_to_end(file)
                return self._kept[file]
            table = pq.read_table(self._files[file], columns=list(COLUMNS))
            # As whole numbers: a pandas timestamp for every row would take longer still.
            table = table.set_column(0, "event_time", table["event_time"].cast("int64"))
            self._kept[file] = table
            if len(self._kept) > self._cached:
                self._kept.popitem(last=False)
            return table


def tokens_by_row(element: tuple[int, list[dict[str, Any]]]) -> dict[str, Any]:
    window, dicts = element
    rows = [
        Row(one["event_time"], one["src_addr"], one["dst_addr"], one["ip_version"], one["rtt"])
        for one in dicts
    ]
    fields = reference_fields(rows, window, 0, 0)
    return {name: np.array(values, np.int32) for name, values in fields.items()}


@contextmanager
def row_by_row(data: Path, batch: int, cached: int | None = CACHED_FILES) -> Iterator[Any]:
    import grain

    files = files_of(data)
    source = RowFiles(files, len(files) if cached is None else cached)
    threads = allowed_cpus()
    dataset = (
        grain.MapDataset.source(source)
        .seed(0)
        .shuffle()
        .repeat()
        .map(tokens_by_row)
        .batch(batch, drop_remainder=True)
        .to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads))
    )
    with closing(iter(dataset)) as batches:
        yield batches


# -- (b) Grain's own Parquet reader, a shuffle buffer, our tokenizer over whole batches ----------


def to_window(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in COLUMNS}


def tokens_of_batch(windows: Sequence[dict[str, list[Any]]]) -> dict[str, Any]:
    joined = {name: [value for one in windows for value in one[name]] for name in COLUMNS}
    columns = prepare(pa.table(joined))
    shaped = {
        name: values.reshape(len(windows), ROWS, *values.shape[1:])
        for name, values in columns.items()
    }
    out = {name: np.empty((len(windows), LENGTH), np.int32) for name in FIELDS}
    number = shaped["time"][:, 0] // 1000  # a stream knows no numbers: any that differ will do
    tokenize_windows(shaped, number, 0, 0, out)
    return out


@contextmanager
def grain_reader(data: Path, batch: int) -> Iterator[Any]:
    import grain
    from absl import flags
    from grain import experimental

    flags.FLAGS.mark_as_parsed()  # its workers look at them
    # One dataset for each file, so that windows are neighbours: its own way to read many files
    # takes a row of each in turn.
    windows = [
        experimental.ParquetIterDataset(file).batch(ROWS, drop_remainder=True, batch_fn=to_window)
        for file in files_of(data)
    ]
    dataset: Any = experimental.InterleaveIterDataset(windows, cycle_length=16)
    dataset = experimental.WindowShuffleIterDataset(dataset, window_size=SHUFFLED, seed=0)
    dataset = dataset.batch(batch, drop_remainder=True, batch_fn=tokens_of_batch)
    workers = min(allowed_cpus(), len(windows))
    dataset = dataset.mp_prefetch(
        grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
    )

    def passes() -> Iterator[Any]:
        while True:
            with closing(iter(dataset)) as batches:
                yield from batches

    with closing(passes()) as batches:
        yield batches


# -- (c) the limit -------------------------------------------------------------------------------


def write_columns(data: Path, to: Path) -> None:
    """All prepared rows as plain arrays, from the store."""
    rows = token_rows(data)
    rows.fill_store()
    count = rows.catalog.rows
    to.mkdir(exist_ok=True)
    arrays = {
        name: np.lib.format.open_memmap(
            to / f"{name}.npy", mode="w+", dtype=dtype, shape=(count, *shape)
        )
        for name, (dtype, shape) in PREPARED.items()
    }
    for first in range(0, count, 1 << 16):
        some = rows.access.rows(first, min(1 << 16, count - first))
        for name, array in arrays.items():
            array[first : first + len(some[name])] = some[name]


def limit(data: Path, batch: int, seconds: float, hot: bool = False) -> dict[str, Any]:
    """Random windows of rows in memory, on all CPUs, into six batches in turn; or always the same
    few into one, which then never leaves the CPU's caches."""
    context = multiprocessing.get_context("fork")
    count = allowed_cpus()
    barrier, results = context.Barrier(count), context.SimpleQueue()
    workers = [
        context.Process(target=_tokenize, args=(data, batch, seconds, hot, n, barrier, results))
        for n in range(count)
    ]
    for worker in workers:
        worker.start()
    rates = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    return {"windows_per_s": sum(rates), "processes": count}


def _tokenize(
    data: Path, batch: int, seconds: float, hot: bool, number: int, barrier: Any, results: Any
) -> None:
    columns = {}
    for name in PREPARED:
        values = np.load(columns_folder(data) / f"{name}.npy", mmap_mode="r")
        whole = len(values) // ROWS
        columns[name] = np.asarray(values[: whole * ROWS]).reshape(whole, ROWS, *values.shape[1:])
        columns[name].reshape(-1).view(np.uint8)[::4096].max()  # all pages are here then
    keep_freed_memory()  # as the loader's workers do
    chance = np.random.default_rng(number)
    batches = [
        {name: np.zeros((batch, LENGTH), np.int32) for name in FIELDS}
        for _ in range(1 if hot else 6)
    ]
    chosen = chance.integers(0, whole, batch)
    barrier.wait()
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        if not hot:
            chosen = chance.integers(0, whole, batch)
        out = batches[done // batch % len(batches)]
        for begin in range(0, batch, TOGETHER):
            some = chosen[begin : begin + TOGETHER]
            tokenize_windows(
                {name: values[some] for name, values in columns.items()},
                some,
                0,
                0,
                {name: array[begin : begin + TOGETHER] for name, array in out.items()},
            )
        done += batch
    results.put(done / (time.perf_counter() - started))


def columns_folder(data: Path) -> Path:
    return data.parent / "columns"


# -- one of them, measured -----------------------------------------------------------------------

PIPELINES: dict[str, tuple[str, Callable[..., Any], dict[str, Any]]] = {
    "exact": ("headrace, exact shuffle", loader, {}),
    "local": ("headrace, local shuffle", loader, {"shuffle": "local"}),
    "local_memory": ("the same without a store", loader, {"shuffle": "local", "store": False}),
    "grain_threads": ("headrace through Grain's threads", grain_output, {}),
    "grain_workers": (
        "headrace through Grain's workers",
        grain_output,
        {"num_workers": allowed_cpus()},
    ),
    "rows": (f"(a) row by row, LRU of {CACHED_FILES} files, Grain's threads", row_by_row, {}),
    "rows_eager": ("(a) with all files in memory", row_by_row, {"cached": None}),
    "grain_reader": (f"(b) Grain's reader, shuffle of {SHUFFLED} windows", grain_reader, {}),
    "limit": ("(c) limit: random windows from memory", limit, {}),
    "limit_hot": ("(c) limit: the same windows again", limit, {"hot": True}),
}


def measure(
    name: str, data: Path, batch: int, seconds: float, warm: float, most: float
) -> dict[str, Any]:
    """First batch, then windows/s after a warm-up."""
    _, make, options = PIPELINES[name]
    started = time.perf_counter()
    if make is limit:
        return limit(data, batch, seconds, **options)
    with make(data, batch, **options) as batches:
        next(batches)
        first = time.perf_counter() - started
        begun = time.perf_counter()
        while time.perf_counter() - begun < warm:
            next(batches)
        # Threads and workers deliver in bursts: enough batches that one more or less is little.
        least = 4 * allowed_cpus()
        begun, count = time.perf_counter(), 0
        while (passed := time.perf_counter() - begun) < seconds or count < least:
            if passed > most and count:
                break
            next(batches)
            count += 1
        passed = time.perf_counter() - begun
    return {
        "windows_per_s": batch * count / passed,
        "first_batch_s": first,
        "batches": count,
        "seconds": passed,
    }


def fill(data: Path) -> dict[str, Any]:
    """Preparing everything, once."""
    started = time.perf_counter()
    rows = token_rows(data)
    rows.fill_store()
    return {"seconds": time.perf_counter() - started, "rows": rows.catalog.rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[*PIPELINES, "fill", "columns"])
    parser.add_argument("data", type=Path)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--warm", type=float, default=2)
    parser.add_argument("--most", type=float, default=60)
    args = parser.parse_args()
    if args.name == "fill":
        result = fill(args.data)
    elif args.name == "columns":
        result = {}
        write_columns(args.data, columns_folder(args.data))
    else:
        result = measure(args.name, args.data, args.batch, args.seconds, args.warm, args.most)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
