"""The folder of a training run: created before training starts, reused when a run is resumed.

runs/2026-11-15_12-00-00_laq_debug/
  config.yaml        the resolved config        train.log       what was printed, and warnings
  metrics.csv        a row a step               result.json     how it ended, and its figures
  batch_times.jsonl  one record a batch         doctor.json     the verdict and its evidence
  checkpoints/  profiles/  visualizations/  artifacts/  tensorboard/  report.html
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import resource
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from headrace.config import to_yaml
from headrace.engine import rank_and_world_size_of_launcher
from headrace.errors import UsageError
from headrace.files import atomic_write
from headrace.measure import (
    Outcome,
    RunReader,
    draw_report,
    machine_facts,
    new_run,
    summarise,
    write_json,
)

LAST = "last.ckpt"
_STAMP = r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d"
_FOLDERS = ("checkpoints", "profiles", "visualizations", "artifacts")
_LOGGERS = ("headrace", "lightning.pytorch", "lightning.fabric", "py.warnings")


# -- where a run is --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resume:
    """A checkpoint to continue from."""

    checkpoint: Path
    folder: Path | None  #: the run that is continued; None: a new run, from that checkpoint


def find_resume(requested: str | None, runs: Path, name: str) -> Resume | None:
    """What `training.resume` means; `auto` finds nothing where there is no run to continue."""
    if requested is None:
        return None
    if requested != "auto":
        path = Path(requested)
        return Resume(_last_of(path), path) if path.is_dir() else Resume(path, None)
    given = os.environ.get("HEADRACE_RUN")
    for folder in [Path(given)] if given else _runs_of(runs, name):
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
            remedy="Give the folder of a run that reached a checkpoint, or a checkpoint",
        )
    return file


@dataclass(slots=True)
class RunFolder:
    """Where a run's files go. Nothing is written before `begin`.

    `path` is a new folder below `runs`, the one in HEADRACE_RUN, or that of the resumed run.
    """

    runs: Path
    name: str
    config: Mapping[str, Any]
    resume: Resume | None = None
    path: Path = field(init=False)
    first: bool = field(init=False)  #: this process writes the files; other ranks do not

    checkpoints = property(lambda self: self.path / "checkpoints")
    profiles = property(lambda self: self.path / "profiles")
    visualizations = property(lambda self: self.path / "visualizations")
    artifacts = property(lambda self: self.path / "artifacts")
    log = property(lambda self: self.path / "train.log")
    last = property(lambda self: self.path / "checkpoints" / LAST)

    def __post_init__(self) -> None:
        self.first = rank_and_world_size_of_launcher()[0] == 0  # no trainer knows it yet
        self.path = self.continued or self.runs

    @property
    def continued(self) -> Path | None:
        """The folder of the run that is resumed; None: a new one."""
        return None if self.resume is None else self.resume.folder

    def begin(self) -> None:
        """Create the folder; ranks other than the first are told later where it is."""
        if not self.first:
            return
        given = os.environ.get("HEADRACE_RUN")
        try:
            path = self.continued or (Path(given) if given else new_run(self.runs, self.name))
            for folder in _FOLDERS:
                (path / folder).mkdir(parents=True, exist_ok=True)
            if not given and not self.continued:
                (path / "log.txt").unlink()  # for programs that are watched from outside
            self.path = path.absolute()
            self._write("config.yaml", to_yaml(dict(self.config)))
            self._write("machine.json", json.dumps(machine_facts(), indent=2) + "\n")
            self.log.touch()
        except UsageError as error:
            raise UsageError(error.problem, remedy="Give another with logging.runs=") from None
        except OSError as error:
            place = str(self.continued or given or self.runs)
            raise UsageError(
                f"the run cannot be archived in {place!r}: {error.strerror}",
                remedy="Check its permissions and free space, or give another with logging.runs=",
            ) from None

    def result(self) -> dict[str, Any]:
        """The content of result.json, if there is one."""
        return RunReader(self.path).result

    def _write(self, name: str, text: str) -> None:
        """A file; that of an earlier start of the run is kept if it was another."""
        file = self.path / name
        if file.exists() and file.read_text() != text:
            number = len(list(self.artifacts.glob(f"{file.stem}_before_*"))) + 1
            file.replace(self.artifacts / f"{file.stem}_before_{number}{file.suffix}")
        atomic_write(file, text)


# -- what is printed -------------------------------------------------------------------------------


class _Tee(io.TextIOBase):
    """A stream whose text also goes to a file."""

    def __init__(self, shown: TextIO, kept: TextIO) -> None:
        self._shown, self._kept = shown, kept

    def write(self, text: str) -> int:
        self._kept.write(text)
        self._kept.flush()
        return self._shown.write(text)

    def flush(self) -> None:
        self._shown.flush()

    def isatty(self) -> bool:
        return self._shown.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._shown.encoding

    def fileno(self) -> int:
        return self._shown.fileno()


@contextmanager
def tee_output(log: Path | None) -> Iterator[None]:
    """Write what is printed to the log too, and warnings and Lightning's messages to it alone.

    Without a log (on ranks other than the first) the latter are dropped.
    """
    logging.captureWarnings(True)
    handler: logging.Handler = logging.NullHandler()
    if log is not None:
        handler = logging.FileHandler(log)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(each, each.propagate, each.handlers) for each in loggers]
    for each in loggers:
        if each.name != "headrace":  # our own messages are for the terminal too
            each.handlers, each.propagate = [], False
        each.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            if log is None:
                yield
                return
            with log.open("a") as kept, redirect_stdout(_Tee(sys.stdout, kept)):
                yield
    finally:
        logging.captureWarnings(False)
        for each, propagate, handlers in before:
            each.removeHandler(handler)
            each.handlers, each.propagate = handlers, propagate
        handler.close()


# -- metrics.csv -----------------------------------------------------------------------------------


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


# -- how it ended ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    status: str  #: complete, interrupted or failed
    folder: Path
    result: dict[str, Any]  #: the content of result.json; empty on ranks other than the first
    cause: str | None = None  #: why it is not complete


def write_result(
    run: RunFolder,
    status: str,
    cause: str | None,
    *,
    backend: str = "headrace",
    asked: Mapping[str, float],
    world: int,
    accumulate: int,
    own: Mapping[str, Any],
) -> dict[str, Any]:
    """Write result.json and the report: figures as a benchmark has them, and the recipe's `own`."""
    reader = RunReader(run.path)
    request = {
        "name": run.name,
        "backend": backend,
        "job": dict(run.config),
        "settings": {"compute_ms": None},
        "machine": reader.machine,
    }
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    anonymous = int(np.nanmax(reader.memory.anon_mb, initial=0.0) * 1e6)
    result = summarise(run.path, request, Outcome(status, cause, None, rss, anonymous), None)
    result["config"] = dict(run.config)
    for key in ("samples_per_s", "samples"):  # batch_times.jsonl has the first rank's
        result[key] = None if result[key] is None else result[key] * world
    rate = result["batches_per_s"]
    result["steps_per_s"] = rate / accumulate if rate else None
    stall, mean = result["stall_s_per_step"], result["mean_s"]
    result["loader_share"] = stall / mean if stall is not None and mean else None
    served = result["mixture"]
    result["mixture"] = {
        each: {"asked": asked.get(each), "served": served.get(each, {}).get("served")}
        for each in {**asked, **served}
    }
    result |= {"program": "train", "world": world, **own}
    write_json(run.path / "result.json", result)
    draw_report(run.path)
    return result
