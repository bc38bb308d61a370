"""One training program on headrace's loader and on the tf.data baseline, in turns.

    python benchmarks/train_backends.py experiment=laq_debug --rounds 3 --out table.md
    python benchmarks/train_backends.py experiment=laq_small data.root=DATA training.steps=300

Each run is `headrace train OVERRIDES data.backend=...` in a fresh process; the table has the median
of the rounds, and the lowest and highest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from reporting import machine, spread

BACKENDS = ("headrace", "tfdata")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="of headrace train")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the table here")
    args = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {backend: [] for backend in BACKENDS}
    for number in range(args.rounds):
        for backend in BACKENDS if number % 2 == 0 else BACKENDS[::-1]:
            found[backend].append(trained(args.overrides, backend))
            print(row(backend, found[backend][-1:]), flush=True)
    text = table(found)
    print(text)
    if args.out:
        args.out.write_text(text)


def trained(overrides: list[str], backend: str) -> dict[str, Any]:
    """The result of one run."""
    with tempfile.TemporaryDirectory(prefix="headrace-train-") as folder:
        command = [sys.executable, "-m", "headrace", "train", *overrides]
        command += [f"data.backend={backend}", f"logging.runs={folder}"]
        command += ["training.limits=false", "--json", f"{folder}/result.json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        result: dict[str, Any] = json.loads(Path(folder, "result.json").read_text())
        return result


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """A row of each backend, as Markdown."""
    heads = ["backend", "samples/s", "dataloader", "validation", "anonymous memory, MB"]
    if any(each["gpu"] for results in found.values() for each in results):
        heads += ["GPU utilisation", "MFU"]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    lines += [row(backend, results) for backend, results in found.items()]
    return "\n".join([*lines, "", f"{machine()}.", ""])


def row(backend: str, results: list[dict[str, Any]]) -> str:
    """Rate, shares of the time, and memory."""
    shares = [[each["profile"][name] for each in results] for name in ("dataloader", "validation")]
    values = [
        spread([each["samples_per_s"] for each in results]),
        *(spread(share, "{:.1%}") for share in shares),
        spread([each["peak_anon_mb"] for each in results]),
    ]
    if all(each["gpu"] and each["gpu"]["utilization_percent"] for each in results):
        used = [each["gpu"]["utilization_percent"]["mean"] for each in results]
        mfu = [each["gpu"]["mfu"] or 0.0 for each in results]
        values += [spread(used, "{:.0f}%"), spread(mfu, "{:.1%}")]
    return f"| {backend} | {' | '.join(values)} |"


if __name__ == "__main__":
    main()
