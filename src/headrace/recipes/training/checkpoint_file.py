"""A checkpoint before it is loaded: what it holds, and how that differs from what is asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headrace.errors import UsageError

__all__ = ["CheckpointFile", "check_same"]


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """What is needed of it before training."""

    path: Path
    step: int
    config: Mapping[str, Any]  #: the task's hyperparameters
    weights: Mapping[str, torch.Tensor]  #: mapped from the file, not read

    @staticmethod
    def read(path: Path, key: str) -> CheckpointFile:
        """Open a file; `key` is the config's, for the messages."""
        others = sorted(each.name for each in path.parent.glob("*.ckpt") if each != path)
        beside = f" Beside it: {', '.join(others)}." if others else ""
        try:
            # Mapped: half a gigabyte is not read twice.
            found = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
            return CheckpointFile(
                path,
                int(found["global_step"]),
                found.get("hyper_parameters", {}),
                found["state_dict"],
            )
        except FileNotFoundError:
            raise UsageError(
                f"{key}: there is no checkpoint {path}", remedy=f"Give another.{beside}"
            ) from None
        except KeyError as error:
            raise UsageError(
                f"{key}: {path} is no checkpoint of a training run: it lacks {error}",
                remedy="Give one of `headrace train` or Lightning",
            ) from None
        except Exception as error:  # torch, zip and pickle each have their own
            words = " ".join(str(error).split())[:200]
            raise UsageError(
                f"{key}: {path} cannot be read: it is damaged or no checkpoint ({words})",
                remedy=f"Give another.{beside}",
            ) from None


def check_same(
    path: Path,
    was: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    group: str,
    keys: Collection[str],
    remedy: str,
) -> None:
    """Refuse a checkpoint in which one of these keys has another value; all of them are named."""
    other = [k for k in keys if k in was and k in now and _plain(was[k]) != _plain(now[k])]
    if other:
        listed = "; ".join(f"{group}.{k} was {was[k]!r}, is {now[k]!r}" for k in other)
        raise UsageError(f"the checkpoint {path} is of another {group}: {listed}", remedy=remedy)


def _plain(value: Any) -> Any:
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value
