"""The folder of a run: its files, how they are written, and how they are read.

runs/2026-11-15_12-00-00_oxe29/
  batch_times.jsonl  a record a batch, written as the run goes
  memory.jsonl       a record every second or so, likewise
  damaged.jsonl      a record a damaged frame that on_error="skip" passed over, if there were any
  result.json        how the run ended, and its figures; missing while it runs or if it was killed
  doctor.json        the verdict and what it rests on, of a run that a doctor watched
  machine.json  config.yaml  log.txt

A killed run leaves half a line, and a disk may damage any. One rule holds for every reader: a line
that is not a JSON object is skipped and counted. Benchmarks, the doctor and the Lightning callbacks
write through `RunWriter`; all readers use `RunReader`, or `results.read_run`, which rests on it.
This module imports nothing of the rooms above `files`, so that `outputs` may use it too.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Self, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.errors import UsageError
from headrace.files import atomic_write, replacing
from headrace.measure.clock import Step
from headrace.measure.columns import Batches, Memory, finite

RESULT, BATCHES, MEMORY = "result.json", "batch_times.jsonl", "memory.jsonl"
DOCTOR, DAMAGED = "doctor.json", "damaged.jsonl"
MEASURED = "measured.json"  #: what the process of a benchmark has found, for the one that watches
#: A folder with any of these is a run.
RUN_FILES = (RESULT, BATCHES, MEMORY)

#: How a run can end. "incomplete": there is no result, because it still runs or was killed together
#: with the process that watched it. The last four are of runs that never started.
Status: TypeAlias = Literal[
    "complete",
    "interrupted",
    "failed",
    "killed",
    "oom-killed",
    "timed out",
    "floor reached",
    "stalled",
    "incomplete",
    "invalid configuration",
    "not installed",
    "not run",
    "skipped",
]

#: Longest text taken from a run into a page; a config or log beyond it is cut, and says so.
_TEXT_LIMIT = 64_000


# -- how a run ends --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, as the process that watched it knows."""

    status: str  #: a `Status`, or the word of a rule that ended it
    cause: str | None = None
    measured: dict[str, Any] | None = None  #: what the process itself has measured, if anything
    peak_rss: int = 0
    peak_anonymous: int = 0
    min_available: int | None = None  #: least memory left, of the machine and of its groups
    wall_s: float = 0.0


def outcome_of(error: BaseException | None) -> Outcome:
    """The outcome of a program that ended with an exception, or without one."""
    if error is None:
        return Outcome("complete")
    if isinstance(error, KeyboardInterrupt):
        return Outcome("interrupted", "interrupted (Ctrl-C)")
    return Outcome("failed", f"{type(error).__name__}: {error}")


# -- writing ---------------------------------------------------------------------------------------


def new_run(root: Path, name: str, now: datetime | None = None) -> Path:
    """A new folder `<root>/<Y-m-d_H-M-S>_<name>` that can be written to."""
    stamp = (now or datetime.now()).strftime("%Y-%m-%d_%H-%M-%S")
    safe = re.sub(r"[^\w.+-]+", "_", name).strip("_") or "run"
    for number in range(1, 1000):
        folder = root / (f"{stamp}_{safe}" if number == 1 else f"{stamp}_{safe}_{number}")
        try:
            folder.mkdir(parents=True)
            (folder / "log.txt").touch()
            return folder
        except FileExistsError:
            if root.is_dir():
                continue
            raise _unwritable(root, "it is not a folder") from None
        except OSError as error:
            raise _unwritable(root, error.strerror) from None
    raise _unwritable(root, "a thousand runs of this name began in this second")


def _unwritable(root: Path, why: str | None) -> UsageError:
    return UsageError(
        f"runs cannot be archived in {str(root)!r}: {why}",
        remedy="Give another folder with --runs",
    )


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically; NaN and infinity, which JSON does not have, as null."""
    atomic_write(path, json.dumps(_jsonable(value), indent=2) + "\n")


def _jsonable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    return value


def source_counts(dataset: NDArray[Any] | None, names: Sequence[str]) -> dict[str, int]:
    """Samples of each source in a batch by `batch.dataset`; empty where the batch has none."""
    if dataset is None:
        return {}
    counts = np.bincount(dataset, minlength=len(names)).tolist()
    return {name: n for name, n in zip(names, counts, strict=False) if n}


def job_facts() -> dict[str, Any]:
    """When and where this happens: the date, the host, and the job where Slurm runs it."""
    names = {
        "job_id": "SLURM_JOB_ID",
        "array_job_id": "SLURM_ARRAY_JOB_ID",
        "array_task_id": "SLURM_ARRAY_TASK_ID",
        "node": "SLURMD_NODENAME",
    }
    slurm = {key: os.environ[name] for key, name in names.items() if os.environ.get(name)}
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"date": date, "host": platform.node()} | ({"slurm": slurm} if slurm else {})


class RunWriter:
    """Writes the records of a run as it goes; each line is in the file once it is written.

    It opens only the files it is to write: a process may write the batches of a run while its
    parent writes the memory. A resumed run keeps the records of its first `resume` batches and
    continues behind them.
    """

    def __init__(
        self, folder: Path, *, batches: bool = False, memory: bool = False, resume: int = 0
    ) -> None:
        self.folder = folder
        self.batches = resume  #: the number of the next batch
        self.peak_rss = self.peak_anonymous = 0  #: most bytes in a record of memory
        self.min_available: int | None = None
        self._seen: dict[str, int] = {}  # the batch in which a dataset was last dominant
        self._earlier = self._earlier_memory = 0.0
        self._batches: TextIO | None = None
        self._memory: TextIO | None = None
        self._clock: float | None = None
        self._damaged = 0  # frames that were written
        self._begun = perf_counter()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if batches and not resume:
                (folder / DAMAGED).unlink(missing_ok=True)
            if batches:
                self._batches, self._earlier = _opened(
                    folder / BATCHES, resume, lambda r: -1 < _number(r, "idx") < resume
                )
            if memory:
                self._memory, self._earlier_memory = _opened(
                    folder / MEMORY, resume, lambda _: True
                )
        except OSError as error:
            raise UsageError(
                f"the run cannot be recorded in {str(folder)!r}: {error.strerror}",
                remedy="Check its permissions and free space, or give another folder",
            ) from None

    def batch(
        self,
        step: Step,
        *,
        samples: int,
        counts: Mapping[str, int],
        look_s: float | None = None,
        knows_wait: bool = True,
    ) -> None:
        """A batch: its step, and its samples by dataset.

        `look_s` is the time that it took to touch it, where that is measured.
        """
        if self._batches is None:
            return
        if self._clock is None:
            self._clock = step.now - step.seconds
        number = self.batches
        dominant = max(counts, key=lambda name: counts[name]) if counts else None
        gap = None
        if dominant is not None:
            gap = number - self._seen.get(dominant, number)
            self._seen[dominant] = number
        record = {
            "idx": number,
            "t_s": round(self._earlier + step.now - self._clock, 6),
            "dt_s": round(step.seconds, 7),
            "fetch_dt_s": round(step.wait_s, 7) if knows_wait else None,
            "materialize_dt_s": None if look_s is None else round(look_s, 7),
            "is_warmup": step.warmup,
            "samples": samples,
            "dominant_dataset": dominant,
            "dataset_counts": dict(counts),
            "dominant_gap_batches": gap,
        }
        self._batches.write(json.dumps(record) + "\n")
        self.batches += 1

    def memory(
        self, *, anonymous: int, available: int, rss: int | None = None, group: int | None = None
    ) -> None:
        """Bytes that the run holds now, that are left, and that its control group is charged."""
        self.peak_rss = max(self.peak_rss, rss or 0)
        self.peak_anonymous = max(self.peak_anonymous, anonymous)
        least = self.min_available
        self.min_available = available if least is None else min(available, least)
        if self._memory is None:
            return
        sizes = {"rss_mb": rss, "anon_mb": anonymous, "available_mb": available, "cgroup_mb": group}
        record = {"t_s": round(self._earlier_memory + perf_counter() - self._begun, 3)}
        record |= {key: round(n / 1e6, 1) for key, n in sizes.items() if n is not None}
        self._memory.write(json.dumps(record) + "\n")

    def damaged(self, frames: Sequence[Any]) -> None:
        """All damaged frames so far, each a dataclass as `statistics().damaged` has them."""
        if new := frames[self._damaged :]:
            with (self.folder / DAMAGED).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(frame)) + "\n" for frame in new)
            self._damaged = len(frames)

    def finish(
        self, status: str, cause: str | None = None, numbers: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Write result.json: how the run ended, and its figures. Returns its content."""
        self.close()
        name = self.folder.resolve().name
        result: dict[str, Any] = {"name": name, "status": status, "cause": cause}
        result |= {"machine": job_facts(), **(numbers or {})}
        write_json(self.folder / RESULT, result)
        return result

    def close(self) -> None:
        files = [file for file in (self._batches, self._memory) if file is not None]
        self._batches = self._memory = None
        for file in files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened(
    path: Path, resume: int, keep: Callable[[dict[str, Any]], bool]
) -> tuple[TextIO, float]:
    """A file, empty or behind the records that a resumed run keeps; and the time of the last."""
    if not resume:
        return path.open("w", buffering=1, encoding="utf-8"), 0.0
    last = 0.0
    with replacing(path, durable=False) as file:
        for line, record in JsonLines(path).with_text():
            if keep(record):
                file.write((line.rstrip("\n") + "\n").encode())
                last = _number(record, "t_s")
    return path.open("a", buffering=1, encoding="utf-8"), max(last, 0.0)


def _number(record: Mapping[str, Any], key: str) -> float:
    number = finite(record.get(key))
    return -1.0 if number is None else number


# -- reading ---------------------------------------------------------------------------------------


def objects(value: Any) -> list[tuple[str, dict[str, Any]]]:
    """The entries of an object that are objects themselves."""
    items = value.items() if isinstance(value, dict) else ()
    return [(name, entry) for name, entry in items if isinstance(entry, dict)]


def inner(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An entry that is an object; empty where it is not there, or something else."""
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def read_object(path: Path) -> tuple[dict[str, Any], str | None]:
    """A JSON object, and what was wrong with it; empty where there is none."""
    try:
        value = json.loads(path.read_text("utf-8", errors="replace"))
    except FileNotFoundError:
        return {}, f"{path.name} is missing: the run was killed before it was written"
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"{path.name} cannot be read ({_why(error)}): what it held is not shown"
    if not isinstance(value, dict):
        return {}, f"{path.name} holds a {type(value).__name__}, not an object: it is not shown"
    return value, None


def read_text(path: Path, tail: int | None = None) -> str:
    """A text file, or its last lines; empty where there is none."""
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
    if tail is not None:
        text = "\n".join(text.splitlines()[-tail:])
    if len(text) > _TEXT_LIMIT:
        text = text[:_TEXT_LIMIT] + f"\n... {len(text) - _TEXT_LIMIT:,} more characters"
    return text


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


class JsonLines:
    """The whole records of a JSON-lines file; what was wrong is known once all are taken."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem: str | None = None
        self.damaged = 0  #: lines that were skipped

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (record for _, record in self.with_text())

    def with_text(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each record with its line."""
        name = self._path.name
        whole, bad, number, line = 0, list[int](), 0, "\n"
        try:
            with self._path.open(encoding="utf-8", errors="replace") as lines:
                for number, line in enumerate(lines, 1):
                    try:
                        record = json.loads(line)
                    except (ValueError, RecursionError):
                        record = None
                    if isinstance(record, dict):
                        whole += 1
                        yield line, record
                    elif line.strip():
                        bad.append(number)
        except FileNotFoundError:
            self.problem = f"{name} is missing: the run recorded none, or was killed at its start"
        except OSError as error:
            self.problem = f"{name} cannot be read to its end ({_why(error)})"
        self.damaged = len(bad)
        kept = f"the {whole:,} whole records count"
        if self.problem:
            return
        if bad == [number] and not line.endswith("\n"):
            self.problem = f"{name} ends in half a line (the run was killed while it wrote): {kept}"
        elif bad:
            where = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
            many = "1 damaged line is" if len(bad) == 1 else f"{len(bad):,} damaged lines are"
            self.problem = f"{name}: {many} skipped (line {where}): {kept}"
        elif not whole:
            self.problem = f"{name} is empty: the run ended before it had something to record"


def damage_note(folder: Path) -> str | None:
    """What to do about the damaged frames that a run has passed over; None: there were none."""
    frames = len(RunReader(folder).damaged_frames)
    if not frames:
        return None
    return (
        f"{frames:,} damaged frame{'' if frames == 1 else 's'} passed over; to leave the episodes "
        f"out of the next run: headrace verify --from {folder} --quarantine"
    )


class RunReader:
    """The files of a run folder, whole or damaged; each is read once, when it is first asked for.

    Missing files are empty. `problems` and `damaged` are of the files that were read so far.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._problems: dict[str, str | None] = {}
        #: Lines that were skipped, by file.
        self.damaged: dict[str, int] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        """What is missing or damaged, in sentences."""
        return tuple(problem for problem in self._problems.values() if problem)

    @cached_property
    def result(self) -> dict[str, Any]:
        found, self._problems[RESULT] = read_object(self.folder / RESULT)
        return found

    @cached_property
    def batches(self) -> Batches:
        lines = JsonLines(self.folder / BATCHES)
        found = Batches.of(lines)
        self._problems[BATCHES], self.damaged[BATCHES] = lines.problem, lines.damaged
        return found

    @cached_property
    def memory(self) -> Memory:
        lines = JsonLines(self.folder / MEMORY)
        found = Memory.of(lines)
        self._problems[MEMORY], self.damaged[MEMORY] = lines.problem, lines.damaged
        return found

    @cached_property
    def machine(self) -> dict[str, Any]:
        stated = self.result.get("machine")
        if isinstance(stated, dict) and stated:
            return stated
        return read_object(self.folder / "machine.json")[0]

    @cached_property
    def doctor(self) -> dict[str, Any]:
        """What a doctor has left: `evidence` and `verdict`; empty where none was there."""
        if not (self.folder / DOCTOR).exists():
            return {}
        found, self._problems[DOCTOR] = read_object(self.folder / DOCTOR)
        return found

    @cached_property
    def damaged_frames(self) -> list[dict[str, Any]]:
        """The damaged frames that the run has passed over; most runs have none."""
        if not (self.folder / DAMAGED).exists():
            return []
        lines = JsonLines(self.folder / DAMAGED)
        found = list(lines)
        self._problems[DAMAGED], self.damaged[DAMAGED] = lines.problem, lines.damaged
        return found

    def figures(self) -> dict[str, Any]:
        """The figures that follow from the records of the batches."""
        return {**self.batches.figures(), "damaged_records": self.damaged[BATCHES]}
