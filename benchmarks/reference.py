"""The reference results: every experiment as a `headrace bench` command, run and tabulated.

    python benchmarks/reference.py DATA --out results.json

DATA holds the 29 datasets (`headrace synth DATA`). Rows that are already in the output file are not
run again, so it continues after an interruption. `--table` prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BASELINES = "tfdata,torch,grain,grain_arrayrecord,webdataset,mosaic"
BOTH = "--versus tfdata"
OXE = "oxe29 root={data} defaults.split=train"

#: Title, then rows of (label, command). A command without --versus is of one backend.
EXPERIMENTS: list[tuple[str, list[tuple[str, str]]]] = [
    (
        "Against other loaders, 29 datasets",
        [
            ("all pairs", f"{OXE} --versus {BASELINES} --repeats 3 --seconds 8"),
            (
                "all pairs, tf.data decoding each frame once",
                f"{OXE} {BOTH} --repeats 3 --seconds 8 tfdata.pipeline.emit_encoded_pairs=false "
                "tfdata.pipeline.post_mix_decode_resize=false tfdata.mixing.parallelism_mode=full",
            ),
            (
                "all pairs, tf.data as tuned",
                f"{OXE} {BOTH} --repeats 3 --seconds 8 tfdata.pipeline.emit_encoded_pairs=false "
                "tfdata.pipeline.transform_parallelism=-1 tfdata.mixing.parallelism_mode=full "
                "tfdata.pipeline.post_mix_decode_resize=false",
            ),
            (
                "samples_per_episode 1",
                f"{OXE} defaults.samples_per_episode=1 {BOTH} --repeats 3 --seconds 8",
            ),
        ],
    ),
    (
        "Number of datasets, batch 128",
        [
            ("one dataset", f"{{mixtures}}/one.yaml root={{data}} loader.batch_size=128 {BOTH}"),
            (
                "two halves of the same dataset",
                "{mixtures}/two_copies.yaml root={data} loader.batch_size=128 "
                f"sources.again.path={{data}}/language_table/0.1.0 {BOTH}",
            ),
            ("four datasets", f"{{mixtures}}/four.yaml root={{data}} loader.batch_size=128 {BOTH}"),
            ("29 datasets", f"{OXE} loader.batch_size=128 {BOTH}"),
        ],
    ),
    (
        "Batch size, 29 datasets",
        [(str(size), f"{OXE} loader.batch_size={size} {BOTH}") for size in (24, 64, 128, 256)],
    ),
    (
        "Samples per episode, 29 datasets",
        [
            (str(count or "all"), f"{OXE} defaults.samples_per_episode={count} {BOTH}")
            for count in (0, 1, 2, 5, 10)
        ],
    ),
    (
        "Metadata, 29 datasets",
        [(mode, f"{OXE} loader.metadata={mode} {BOTH}") for mode in ("none", "dataset", "full")],
    ),
    (
        "Mixing in tf.data, 29 datasets",
        [
            (name, f"{OXE} --backend tfdata tfdata.mixing.strategy={name}")
            for name in ("sample", "choose", "python")
        ]
        + [
            (
                f"sample, blocks of {length}",
                f"{OXE} --backend tfdata tfdata.mixing.mix_block_length={length}",
            )
            for length in (4, 16)
        ],
    ),
    (
        "Private thread pools in tf.data, two halves of one dataset, batch 128",
        [
            (
                f"{size} threads each" if size else "shared pool",
                "{mixtures}/two_copies.yaml root={data} loader.batch_size=128 "
                "sources.again.path={data}/language_table/0.1.0 --backend tfdata "
                f"tfdata.mixing.per_dataset_private_threadpool_size={size}",
            )
            for size in (0, 2, 64)
        ],
    ),
    (
        "Reading in tf.data, 29 datasets",
        [
            ("only the fields that are used", f"{OXE} --backend tfdata"),
            (
                "all fields, as TFDS reads",
                f"{OXE} --backend tfdata tfdata.tfds_read.only_needed_fields=false",
            ),
            (
                "all fields, autotuned",
                f"{OXE} --backend tfdata tfdata.tfds_read.only_needed_fields=false "
                "tfdata.prefetch.final_stream_buffer=-1",
            ),
        ],
    ),
    (
        "Shuffle buffer in tf.data, 29 datasets",
        [
            (f"{size} pairs", f"{OXE} --backend tfdata tfdata.shuffle.global_buffer={size}")
            for size in (0, 1000, 5000)
        ],
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("reference.json"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--seconds", type=float, default=6, help="of a row that does not say")
    parser.add_argument("--only", default="", help="experiments whose title contains this")
    parser.add_argument("--table", action="store_true", help="print what is there as Markdown")
    args = parser.parse_args()
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    if args.table:
        print(tables(found))
        return
    for title, rows in EXPERIMENTS:
        for label, command in rows:
            key = f"{title} | {label}"
            if args.only in title and key not in found:
                found[key] = run(command, args)
                args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(tables(found))


def run(command: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run one command; what it found, and the command as it is shown."""
    mixtures = HERE / "mixtures"
    given = command.format(data=args.data, mixtures=mixtures)
    if "--seconds" not in command:
        length = f" --seconds {args.seconds:g}"
        given, command = given + length, command + length
    if "--versus" in command and "--repeats" not in command:
        given, command = given + " --repeats 1", command + " --repeats 1"
    extra = "" if "--repeats 3" in command else " --no-limit"
    shown = "headrace bench " + command.format(data="DATA", mixtures="benchmarks/mixtures") + extra
    print(shown, flush=True)
    out = Path("reference_row.json")
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "bench", *shlex.split(given + extra)]
        + ["--runs", str(args.runs), "--json", str(out)],
        stdout=subprocess.PIPE,
        text=True,
    )
    print(done.stdout, flush=True)
    if done.returncode in (2, 130):
        raise SystemExit(done.returncode)
    result = json.loads(out.read_text())
    out.unlink()
    return {"command": shown, "rows": _rows(result), "ratios": result.get("ratios", {})}


def _rows(result: dict[str, Any]) -> dict[str, Any]:
    """By backend."""
    if "comparison" in result:
        return dict(result["comparison"])
    keys = ("samples_per_s", "limit_ratio", "first_batch_s", "peak_anon_mb", "peak_rss_mb")
    row = {key: _single(result[key]) for key in keys}
    return {result["backend"]: {**row, "status": result["status"], "cause": result["cause"]}}


def _single(value: float | None) -> dict[str, Any] | None:
    return None if value is None else {"median": value, "min": value, "max": value, "runs": [value]}


def tables(found: dict[str, Any]) -> str:
    """All experiments as Markdown."""
    lines: list[str] = []
    for title, rows in EXPERIMENTS:
        present = [(label, found[f"{title} | {label}"]) for label, _ in rows
                   if f"{title} | {label}" in found]  # fmt: skip
        if not present:
            continue
        lines += ["", f"## {title}", ""]
        lines += ["| | backend | samples/s | first batch | memory | headrace / it |"]
        lines += ["|---|---|---:|---:|---:|---:|"]
        for label, row in present:
            for backend, figures in row["rows"].items():
                ratio = row["ratios"].get(backend)
                lines.append(
                    f"| {label} | {backend} | {_range(figures['samples_per_s'], '{:,.0f}')} | "
                    f"{_range(figures['first_batch_s'], '{:.1f} s')} | "
                    f"{_range(figures['peak_anon_mb'], '{:,.0f} MB')} | "
                    f"{_range(ratio, '{:.2f}') if ratio else ''} |"
                    if figures["status"] == "complete"
                    else f"| {label} | {backend} | {figures['status']}: {figures['cause']} | | | |"
                )
        lines += ["", *(f"    {row['command']}" for _, row in present)]
    return "\n".join(lines)


def _range(values: dict[str, Any] | None, pattern: str) -> str:
    if values is None:
        return "-"
    middle = pattern.format(values["median"])
    if len(values["runs"]) == 1:
        return middle
    return f"{middle} ({pattern.format(values['min'])} to {pattern.format(values['max'])})"


if __name__ == "__main__":
    main()
