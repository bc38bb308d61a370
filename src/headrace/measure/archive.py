"""The run archive: one folder a run, made before the run begins."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from headrace.errors import UsageError

__all__ = ["new_run", "write_json", "write_text"]


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
            raise _unwritable(root, "it is no folder") from None
        except OSError as error:
            raise _unwritable(root, error.strerror) from None
    raise _unwritable(root, "a thousand runs of this name began in this second")


def _unwritable(root: Path, why: str | None) -> UsageError:
    return UsageError(
        f"runs cannot be archived in {str(root)!r}: {why}",
        remedy="Give another folder with --runs",
    )


def write_json(path: Path, value: Any) -> None:
    """Write aside and rename, so that a reader never sees half of it; no NaN, which is no JSON."""
    write_text(path, json.dumps(_finite(value), indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write aside and rename; nothing is left of what could not be written."""
    aside = path.with_name(f".{path.name}.tmp")
    try:
        aside.write_text(text)
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        error.filename = error.filename or str(path)  # a full disk does not say which file
        raise


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
