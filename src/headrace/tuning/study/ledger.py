"""A folder of guarded runs: one process works in it, and every finished run is remembered there.

Studies and searches resume by it: a run that the ledger holds is not made again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

from headrace.errors import HeadraceError, UsageError
from headrace.files import Locked, locked
from headrace.measure.bench import Watch
from headrace.measure.isolated import end_leftovers
from headrace.measure.runs import JsonLines, job_facts
from headrace.tuning.study.trial import Attempt, Guard, Trial, try_once

_log = logging.getLogger("headrace")

#: Is told of each run that has ended: its title, as `Watch` had it, and its result.
Tell: TypeAlias = Callable[[str, Attempt], None]
#: What sets runs of the same trial apart: their round.
Round: TypeAlias = int | str

#: These tell nothing about a configuration: it is tried again when a study resumes.
_UNFINISHED = ("interrupted", "not installed", "skipped")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Ledger:
    """Finished runs by trial and round: a line each, on disk before the next run begins."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[tuple[str, Round], dict[str, Any]] = {}
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:  # killed in the middle of a line
            os.truncate(path, len(whole))
        lines = JsonLines(path)
        for entry in lines:
            with contextlib.suppress(KeyError, TypeError):
                self._found[entry["key"], entry["round"]] = entry
        if lines.damaged:
            _log.warning("%s; the runs of the damaged ones are made again", lines.problem)

    def __len__(self) -> int:
        return len(self._found)

    def find(self, trial: Trial, number: Round, guard: Guard) -> Attempt | None:
        """The run of a trial in a round, if it was finished.

        Under another guard only a complete run counts, if it would have kept the new floor, too.
        """
        entry = self._found.get((_key(trial), number))
        if entry is None:
            return None
        attempt = Attempt.from_dict(entry["attempt"])
        least = attempt.min_available_mb
        kept = attempt.complete and (least is None or least * 1e6 >= guard.floor)
        return attempt if kept or entry["guard"] == asdict(guard) else None

    def add(self, trial: Trial, number: Round, guard: Guard, attempt: Attempt) -> None:
        """Remember a finished run; on a full disk no part of its line is left behind."""
        if attempt.status in _UNFINISHED or trial.known is not None:
            return
        key = _key(trial)
        entry = {
            "key": key,
            "label": trial.label,
            "round": number,
            "guard": asdict(guard),
            "attempt": asdict(attempt),
        }
        with self._path.open("ab", buffering=0) as file:
            before = file.tell()
            line = json.dumps(entry).encode() + b"\n"
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError as error:
                file.truncate(before)
                error.filename = str(self._path)
                raise
        self._found[key, number] = entry


class RunFolder:
    """Runs of trials below `folder/runs`, each made once and remembered in `ledger.jsonl`."""

    def __init__(self, folder: Path, guard: Guard, watch: Watch, tell: Tell) -> None:
        self.folder, self.guard = folder, guard
        self.ledger = Ledger(folder / "ledger.jsonl")
        self.made = 0  #: runs that were made now; the others were remembered
        self._watch, self._tell = watch, tell

    @staticmethod
    @contextmanager
    def open(
        folder: Path,
        guard: Guard,
        *,
        again: bool = False,
        watch: Watch = lambda _title, _sight: None,
        tell: Tell = lambda _title, _attempt: None,
    ) -> Iterator[RunFolder]:
        """Lock the folder, and end what a killed process left running there.

        `again` forgets what was finished. A full disk is an error that names the file.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / "study.lock"):
                end_leftovers(folder / "runs")
                if again:
                    (folder / "ledger.jsonl").unlink(missing_ok=True)
                yield RunFolder(folder, guard, watch, tell)
        except Locked as error:
            raise UsageError(
                f"another run is at work in {str(folder)!r}: process {error.holder}",
                remedy="Wait for it, or give another folder with --out",
            ) from None
        except OSError as error:
            name = str(error.filename or folder)
            resume = "What was measured is kept: run the same command again to resume"
            raise UsageError(
                f"{name!r} cannot be written: {error.strerror}",
                remedy=f"Free some space. {resume}"
                if error.errno in _FULL
                else "Give another folder with --out",
            ) from None

    def known(self, trial: Trial, number: Round) -> bool:
        """Whether the run of a trial in a round is remembered."""
        return self.ledger.find(trial, number, self.guard) is not None

    def attempt(
        self,
        trial: Trial,
        number: Round,
        title: str,
        *,
        timeout_s: float | None = None,
        keep_timeout: bool = True,
    ) -> Attempt:
        """The run of a trial in a round, made now unless it is remembered.

        `timeout_s` may be shorter than that of the guard; without `keep_timeout` a run that does
        not end in time is not remembered. Ctrl-C makes it an interrupted one.
        """
        attempt = self.ledger.find(trial, number, self.guard)
        if attempt is not None:
            return attempt
        limit = min(self.guard.timeout_s, timeout_s or self.guard.timeout_s)
        guard = replace(self.guard, timeout_s=limit)
        try:
            attempt = try_once(trial, self.folder / "runs", guard, title=title, watch=self._watch)
        except KeyboardInterrupt:
            attempt = Attempt("interrupted", "interrupted (Ctrl-C)")
        except HeadraceError as error:
            # What is wrong with the trial is in its attempt: this is a folder of ours.
            raise UsageError(error.problem, remedy="Free some space, or give --out") from None
        if attempt.folder is not None:
            facts = job_facts()
            job_id = facts.get("slurm", {}).get("job_id")
            attempt = replace(attempt, date=facts["date"], job_id=job_id)
        full = trial.command is None and "No space left" in (attempt.cause or "")
        if full and shutil.disk_usage(self.folder).free < 1 << 20:
            # The files of the run did not fit, which says nothing about its configuration.
            raise OSError(errno.ENOSPC, "No space left on device", attempt.folder)
        if keep_timeout or attempt.status != "timed out":
            self.ledger.add(trial, number, self.guard, attempt)
        if attempt.folder is not None and attempt.status != "interrupted":
            self.made += 1
        self._tell(title, attempt)
        return attempt


def _key(trial: Trial) -> str:
    text = json.dumps(trial.to_dict(), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
