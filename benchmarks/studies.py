"""The packaged studies, run and shown in docs/studies: `python benchmarks/studies.py --keep DATA`.

Generates the datasets of the reference mixture if DATA is empty, reads them once so that they are
in the page cache, runs every study (the same command continues after an interruption), and writes
each log with its plots, what changed against the page that was there, and that page's conclusion.
The conclusions are prose: read them against the new figures, also those in docs/studies/README.md.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from headrace.testing import synthesize
from headrace.tuning.study import packaged_studies
from reporting import data_folder, say

DOCS = Path(__file__).parents[1] / "docs" / "studies"
_ROUNDS = {"sustained": 2}  # of the long one whatever is asked for
#: Added to the ladder: what the guard does to a program that takes all memory.
_EATS = (
    "{label: eats memory, command: [python3, -c, "
    '"import time; x = [bytearray(64 << 20) for _ in iter(lambda: time.sleep(0.05), 1)]"]}'
)


def main() -> None:
    names = sorted(packaged_studies())
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", metavar="DIR", help="put the data here and keep them")
    parser.add_argument("--out", type=Path, default=Path("studies"), help="where studies are run")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--study", action="append", choices=names, help="only this; can repeat")
    args = parser.parse_args()
    with data_folder(args.keep) as root:
        if not any(root.iterdir()):
            synthesize(root)
        for file in root.rglob("*.tfrecord*"):
            file.read_bytes()
        for name in args.study or names:
            began = time.monotonic()
            shown = run(name, root, args.out / name, _ROUNDS.get(name, args.rounds))
            publish(name, args.out / name, root, shown)
            say(name, f"{time.monotonic() - began:,.0f} s, docs/studies/{name}.md")
    print("\nRead the conclusions of these pages, and docs/studies/README.md, against the figures.")


def run(name: str, root: Path, folder: Path, rounds: int) -> str:
    """Run a study to its end; the command as the page shows it."""
    command = ["headrace", "study", name, f"root={root}", "--repeats", str(rounds)]
    shown = f"headrace study {name} root=DATA --repeats {rounds}"
    if name == "param_ladder":
        command += ["--add", _EATS]
        shown += f" \\\n  --add '{_EATS}'"
    full = [sys.executable, "-m", *command, "--out", str(folder)]
    if subprocess.run(full).returncode not in (0, 1):  # 1: a row is not complete
        raise SystemExit(f"{' '.join(full)} did not come to its end")
    return shown


def publish(name: str, folder: Path, root: Path, command: str) -> None:
    """Write the page of a study from its log and the page that was there."""
    page = DOCS / f"{name}.md"
    before = page.read_text() if page.exists() else ""
    log = (folder / "log.md").read_text().partition("\n## Runs\n")[0].rstrip()
    log = log.replace(str(root), "DATA").replace("](plots/", f"](plots/{name}_")
    for plot in (folder / "plots").glob("*.svg"):
        shutil.copy(plot, DOCS / "plots" / f"{name}_{plot.name}")
    conclusion = before.partition("\n## Conclusion\n")[2] or "\nNot written yet.\n\n```\n```\n"
    conclusion = re.sub(
        r"```\n.*?```", lambda _: f"```\n{command}\n```", conclusion, count=1, flags=re.DOTALL
    )
    parts = [log, *changes(before, log), f"## Conclusion\n{conclusion}"]
    page.write_text("\n\n".join(parts))


def changes(before: str, now: str) -> list[str]:
    """A section that sets the rows of an earlier page beside those of this one."""
    old, new = rows(before), rows(now)
    if not old:
        return []
    if old == new:  # written a second time: the section that is there says it already
        kept = before.partition("\n## What changed\n")[2].partition("\n## Conclusion\n")[0].rstrip()
        return [f"## What changed\n{kept}"] if kept else []
    told = [line for line in before.splitlines() if line.startswith(("- Mixture", "- Measured"))]
    lines = ["## What changed", "", "The page before this one:", "", *told, ""]
    lines += [
        "| label | samples/s before | now | ratio before | now |",
        "|---|---:|---:|---:|---:|",
    ]
    for label in dict.fromkeys((*new, *old)):
        (was, was_ratio), (is_, ratio) = (found.get(label, ("-", "-")) for found in (old, new))
        lines.append(f"| {label} | {was} | {is_} | {was_ratio} | {ratio} |")
    return ["\n".join(lines)]


def rows(page: str) -> dict[str, tuple[str, str]]:
    """Samples/s and ratio by label, from the first table of a page."""
    found = {}
    heads: list[str] = []
    for line in page.splitlines():
        if not line.startswith("|"):
            if heads:
                break
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not heads:
            heads = cells
        elif not cells[0].startswith("--") and "samples/s" in heads:
            found[cells[0]] = (cells[heads.index("samples/s")], cells[heads.index("ratio")])
    return found


if __name__ == "__main__":
    main()
