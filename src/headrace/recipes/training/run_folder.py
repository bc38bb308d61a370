"""The folder of a training run: made before anything starts, gone on with when a run is resumed.

runs/2026-11-15_12-00-00_laq_debug/
  config.yaml        the resolved config        train.log       what was said
  metrics.csv        a row a step               result.json     how it ended, and its figures
  batch_times.jsonl  one record a batch         doctor.json     the verdict and its evidence
  checkpoints/  profiles/  visualizations/  artifacts/  tensorboard/  report.html
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config.documents import to_yaml
from headrace.errors import UsageError
from headrace.files import atomic_write
from headrace.measure.machine import machine_facts
from headrace.measure.runs import new_run, read_object, write_json

__all__ = ["LAST", "Resume", "RunFolder", "find_resume", "global_rank", "read_rows", "write_rows"]

LAST = "last.ckpt"
_STAMP = r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d"
_FOLDERS = ("checkpoints", "profiles", "visualizations", "artifacts")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a run's files go. `first`: this process writes them, others only know of it."""

    path: Path
    first: bool = True

    checkpoints = property(lambda self: self.path / "checkpoints")
    profiles = property(lambda self: self.path / "profiles")
    visualizations = property(lambda self: self.path / "visualizations")
    artifacts = property(lambda self: self.path / "artifacts")
    log = property(lambda self: self.path / "train.log")
    last = property(lambda self: self.path / "checkpoints" / LAST)

    @staticmethod
    def begin(
        runs: Path, name: str, config: Mapping[str, Any], go_on: Path | None = None
    ) -> RunFolder:
        """A new folder below `runs`, that in HEADRACE_RUN, or one to go on in."""
        if global_rank() > 0:  # the first rank makes it and tells the others where it is
            return RunFolder(go_on or runs, first=False)
        given = os.environ.get("HEADRACE_RUN")
        try:
            path = go_on or (Path(given) if given else new_run(runs, name))
            for folder in _FOLDERS:
                (path / folder).mkdir(parents=True, exist_ok=True)
            run = RunFolder(path.absolute())
            if not given and not go_on:
                (path / "log.txt").unlink()  # of programs that are watched from outside
            run._write_config(config)
            run.log.touch()
            if not (path / "machine.json").exists():
                write_json(path / "machine.json", machine_facts())
        except UsageError as error:
            raise UsageError(error.problem, remedy="Give another with logging.runs=") from None
        except OSError as error:
            raise UsageError(
                f"the run cannot be archived in {str(go_on or given or runs)!r}: {error.strerror}",
                remedy="Check its permissions and free space, or give another with logging.runs=",
            ) from None
        return run

    def _write_config(self, config: Mapping[str, Any]) -> None:
        """The config, and that of an earlier start of the run beside it where it was another."""
        file, text = self.path / "config.yaml", to_yaml(dict(config))
        if file.exists() and file.read_text() != text:
            number = len(list(self.artifacts.glob("config_before_*.yaml"))) + 1
            file.replace(self.artifacts / f"config_before_{number}.yaml")
        atomic_write(file, text)

    def result(self) -> dict[str, Any]:
        """What result.json says, if there is one."""
        return read_object(self.path / "result.json")[0]


@dataclass(frozen=True, slots=True)
class Resume:
    """A checkpoint to go on from."""

    checkpoint: Path
    folder: Path | None  #: the run that goes on; None: a new run, from that checkpoint


def find_resume(asked: str | None, runs: Path, name: str) -> Resume | None:
    """What `training.resume` means. `auto` finds nothing where there is no run to go on with."""
    if asked is None:
        return None
    if asked != "auto":
        path = Path(asked)
        if path.is_dir():
            return Resume(_last_of(path), path)
        return Resume(path, None)
    given = os.environ.get("HEADRACE_RUN")
    folders = [Path(given)] if given else _runs_of(runs, name)
    for folder in folders:
        if (file := folder / "checkpoints" / LAST).is_file():
            return Resume(file, folder)
    return None


def _runs_of(runs: Path, name: str) -> list[Path]:
    """The folders of an experiment's runs, newest first."""
    safe = re.escape(re.sub(r"[^\w.+-]+", "_", name).strip("_"))
    pattern = re.compile(rf"({_STAMP})_{safe}(?:_(\d+))?")
    found = [
        (match[1], int(match[2] or 1), path)
        for path in (runs.iterdir() if runs.is_dir() else ())
        if (match := pattern.fullmatch(path.name))
    ]
    return [path for _, _, path in sorted(found, reverse=True)]


def _last_of(folder: Path) -> Path:
    file = folder / "checkpoints" / LAST
    if not file.is_file():
        others = sorted((folder / "checkpoints").glob("*.ckpt"))
        listed = f"; there are {', '.join(map(str, others))}" if others else ""
        raise UsageError(
            f"training.resume: {folder} has no checkpoints/{LAST}{listed}",
            remedy="Give the folder of a run that came to a checkpoint, or a checkpoint",
        )
    return file


def global_rank() -> int:
    """Which of the processes of a run this is, by the environment its launcher has set."""
    for key in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        if os.environ.get(key, "").isdigit():
            return int(os.environ[key])
    return 0


def read_rows(path: Path) -> list[dict[str, float]]:
    """The rows of a metrics.csv by step; what is not known of a step is left out.

    So is an incomplete row at the end, which a killed run leaves.
    """
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    whole = [row for row in rows if (row["step"] or "").isdigit() and None not in row.values()]
    return [{name: float(value) for name, value in row.items() if value} for row in whole]


def write_rows(path: Path, rows: Iterable[Mapping[str, float]]) -> list[str]:
    """Replace a metrics.csv; the values of one step become one row. Returns the columns."""
    merged: dict[int, dict[str, float]] = {}
    for row in rows:
        step = int(row["step"])
        merged.setdefault(step, {}).update({**row, "step": step})
    columns = ["step", *sorted({name for row in merged.values() for name in row} - {"step"})]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(merged[step] for step in sorted(merged))
    atomic_write(path, text.getvalue(), durable=False)
    return columns
