"""The tokenizer on one core: windows/s and tokens/s, against one that goes row by row.

    python benchmarks/tokens.py                # about half a minute

`rows` is how such a pipeline is commonly written: a dict for every row (pyarrow's `to_pylist`) and
plain Python from there (`reference`). `prepare` is what is done once a row, `tokenize` what is done
in every epoch, for one window at a time and for many. CPU time; each figure is the best of
several tries.
"""

from __future__ import annotations

import argparse
import json
import timeit
from time import process_time

import numpy as np

from headrace.measure.machine import machine_facts
from headrace.recipes.network import COLUMNS, FIELDS, LENGTH, ROWS, prepare, tokenize_windows
from headrace.testing.network import shard_table
from parquet_pipelines import tokens_by_row

_WINDOWS = 1024


def by_rows(table, windows):
    """Tokens of the first windows, row by row."""
    for window in range(windows):
        tokens_by_row((window, table.slice(ROWS * window, ROWS).to_pylist()))


def best(call, tries=5):
    """Seconds of the best of some tries."""
    return min(timeit.repeat(call, timer=process_time, number=1, repeat=tries))


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    table = shard_table(0, 0, ROWS * _WINDOWS).select(COLUMNS)
    # Whole numbers, as pandas' timestamps are not at hand.
    plain = table.set_column(0, "event_time", table["event_time"].cast("int64"))
    few = 64
    seconds = {
        "rows": best(lambda: by_rows(plain, few), 5) / few,
        "prepare": best(lambda: prepare(table), 7) / _WINDOWS,
    }
    columns = prepare(table)
    shaped = {
        name: values.reshape(_WINDOWS, ROWS, *values.shape[1:]) for name, values in columns.items()
    }
    for together in (1, 8, 32, 64, 256):
        some = {name: values[:together] for name, values in shaped.items()}
        out = {name: np.zeros((together, LENGTH), np.int32) for name in FIELDS}
        repeats = max(1, 256 // together)

        def many(some=some, out=out, repeats=repeats, together=together):
            for _ in range(repeats):
                tokenize_windows(some, np.arange(together), 0, 0, out)

        seconds[f"tokenize, {together} at a time"] = best(many, 15) / repeats / together
    seconds["prepare and tokenize 64"] = seconds["prepare"] + seconds["tokenize, 64 at a time"]
    rows = {
        name: {
            "us_per_window": round(1e6 * value, 2),
            "windows_per_s": round(1 / value),
            "tokens_per_s": round(LENGTH / value),
            "times_rows": round(seconds["rows"] / value, 1),
        }
        for name, value in seconds.items()
    }
    if options.json:
        print(json.dumps({"machine": machine_facts(), "results": rows}, indent=2))
        return
    print(f"{'':24} {'us/window':>10} {'windows/s':>10} {'tokens/s':>12} {'x rows':>7}")
    for name, row in rows.items():
        print(
            f"{name:24} {row['us_per_window']:>10,.1f} {row['windows_per_s']:>10,} "
            f"{row['tokens_per_s']:>12,} {row['times_rows']:>7,.1f}"
        )


if __name__ == "__main__":
    main()
