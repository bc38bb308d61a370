"""Files of one JSON object a line, which a resumed run goes on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from headrace.errors import UsageError

__all__ = ["go_on"]


def go_on(path: Path, keep: Callable[[dict[str, Any]], bool]) -> tuple[TextIO, float]:
    """Open a file behind the records to keep, the first ones; and when the last of them was (t_s).

    Keeping ends with the first record that is not to be kept, or is not whole because the run was
    killed while it wrote.
    """
    kept, t_s = _kept(path, keep)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{str(path)!r} cannot be written: {error.strerror}",
            remedy="Check its permissions and free space, or give the callback another folder",
        ) from None
    file.writelines(kept)
    file.flush()
    return file, t_s


def _kept(path: Path, keep: Callable[[dict[str, Any]], bool]) -> tuple[list[str], float]:
    kept: list[str] = []
    t_s = 0.0
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                record = json.loads(line)
                if not isinstance(record, dict) or not keep(record):
                    break
                kept.append(line.rstrip("\n") + "\n")
                t_s = float(record.get("t_s") or 0.0)
    except (OSError, ValueError):  # none there, or not whole
        pass
    return kept, t_s
