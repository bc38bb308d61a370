"""What a study has finished, one line a run, on disk before the next begins; and its lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.tuning.attempt import Attempt
from headrace.tuning.guard import Guard
from headrace.tuning.trial import Trial

__all__ = ["Ledger", "disk_full", "locked"]

#: Nothing was found out by these: they are tried anew when a study goes on.
_UNFINISHED = ("interrupted", "not installed", "skipped")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Ledger:
    """Finished runs by trial and round."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[tuple[str, int], dict[str, Any]] = {}
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:  # killed in the middle of a line
            os.truncate(path, len(whole))
        for line in whole.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                self._found[entry["key"], entry["round"]] = entry

    def __repr__(self) -> str:
        return f"<Ledger {self._path}: {len(self._found)} runs>"

    def __len__(self) -> int:
        return len(self._found)

    def find(self, trial: Trial, number: int, guard: Guard) -> Attempt | None:
        """The run of a trial in a round, if it was finished.

        Under another guard only what passed is still true, if it also kept the new floor.
        """
        entry = self._found.get((_key(trial), number))
        if entry is None:
            return None
        attempt = Attempt.from_dict(entry["attempt"])
        least = attempt.min_available_mb
        kept = attempt.status == "pass" and (least is None or least * 1e6 >= guard.min_available)
        return attempt if kept or entry["guard"] == guard.to_dict() else None

    def add(self, trial: Trial, number: int, guard: Guard, attempt: Attempt) -> None:
        """Write a finished run down; on a full disk nothing of it is left behind."""
        if attempt.status in _UNFINISHED or trial.known is not None:
            return
        key = _key(trial)
        entry = {
            "key": key,
            "label": trial.label,
            "round": number,
            "guard": guard.to_dict(),
            "time": datetime.now().isoformat(timespec="seconds"),
            "attempt": attempt.to_dict(),
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
                raise disk_full(error, self._path) from None
        self._found[key, number] = entry


def _key(trial: Trial) -> str:
    """Equal for trials that would run the same; the words of a change do not matter."""
    values = {
        key: value for key, value in trial.to_dict().items() if key not in ("change", "known")
    }
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def disk_full(error: OSError, path: Path) -> Exception:
    """A full disk as an error that names the file; any other as it is."""
    if error.errno not in _FULL:
        return error
    return UsageError(
        f"{str(error.filename or path)!r} cannot be written: {error.strerror}",
        remedy="What was measured before is kept. Free some space, then run the same command again "
        "to continue",
    )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one study at a time in a folder; the lock goes with the process that holds it."""
    path = folder / "study.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(
            f"the study cannot be written to {str(folder)!r}: {error.strerror}",
            remedy="Give another folder with --out",
        ) from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(file, 32, 0).decode(errors="replace").strip() or "of unknown number"
            raise UsageError(
                f"another run is at work in {str(folder)!r}: process {holder}",
                remedy="Wait for it, or give another folder with --out",
            ) from None
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise disk_full(error, path) from None
        yield
    finally:
        os.close(file)
