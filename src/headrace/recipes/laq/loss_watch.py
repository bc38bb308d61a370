"""Where the samples of a batch come from, and what to do when their loss is not a number."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace.errors import HeadraceError

__all__ = ["LossWatch", "NonFiniteLossError", "provenance"]

_KEPT = ("draws", "dataset", "episode_id", "frame_idx", "offset", "names")
_SHOWN = 3  # samples named in the message; the file has all


class NonFiniteLossError(HeadraceError, ArithmeticError):
    """The loss of a training step is infinite or not a number."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.problem, self.remedy)


def _again(problem: str, remedy: str | None) -> NonFiniteLossError:
    return NonFiniteLossError(problem, remedy=remedy)


def provenance(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the batch tells of each sample: draw, dataset, episode, frame, offset.

    The episode is given as in the batch (`episode_id`) and as shard and record. What the loader's
    metadata mode leaves out is left out here too.
    """
    columns: dict[str, list[int]] = {
        name: batch[name].tolist() for name in _KEPT if name != "names" and name in batch
    }
    count = len(next(iter(columns.values()))) if columns else 0
    samples = []
    for i in range(count):
        sample: dict[str, Any] = {}
        if "draws" in columns:
            sample["draw"] = columns["draws"][i]
        if "dataset" in columns:
            sample["dataset"] = batch["names"][columns["dataset"][i]]
        if "episode_id" in columns:
            episode = columns["episode_id"][i]
            sample |= {"episode_id": episode, "shard": episode >> 32}
            sample["record"] = episode & 0xFFFFFFFF
        if "frame_idx" in columns:
            sample["frame"] = columns["frame_idx"][i]
        if "offset" in columns:
            sample["offset"] = columns["offset"][i]
        samples.append(sample)
    return samples


@dataclass(slots=True)
class _Watched:
    step: int
    batch: dict[str, Any]
    finite: Tensor  #: bool on the host, valid once `ready` has happened
    ready: torch.cuda.Event | None


class LossWatch:
    """Raises when a loss is not finite, with the provenance of its batch in a JSON file.

    On a GPU the verdict is copied to the host in the background and looked at a few steps later:
    asking at once would make the host wait for every step. Call `settle` before a checkpoint is
    written and at the end.
    """

    def __init__(self, folder: str | Path | None = None, behind: int = 8) -> None:
        self._folder = None if folder is None else Path(folder)
        self._behind = behind
        self._pending: deque[_Watched] = deque()

    def watch(self, step: int, batch: Mapping[str, Any], loss: Tensor) -> None:
        """Look at the loss of a step, and at those of earlier steps that are known by now."""
        kept = {name: batch[name] for name in _KEPT if name in batch}
        finite = loss.detach().isfinite().all()
        ready = None
        if finite.is_cuda:
            # What the batch lends may be reused before the verdict is in.
            kept = {n: v.clone() if isinstance(v, Tensor) else v for n, v in kept.items()}
            host = torch.empty((), dtype=torch.bool, pin_memory=True)
            host.copy_(finite, non_blocking=True)
            finite, ready = host, torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        self._pending.append(_Watched(step, kept, finite, ready))
        while self._pending and (
            (first := self._pending[0]).ready is None
            or first.ready.query()  # type: ignore[no-untyped-call]
            or len(self._pending) > self._behind
        ):
            self._judge(self._pending.popleft())

    def settle(self) -> None:
        """Wait for the verdict on all steps watched so far."""
        while self._pending:
            self._judge(self._pending.popleft())

    def _judge(self, watched: _Watched) -> None:
        if watched.ready is not None:
            watched.ready.synchronize()
        if bool(watched.finite):
            return
        self._pending.clear()
        samples = provenance(watched.batch)
        first = "; ".join(
            ", ".join(f"{key} {value}" for key, value in sample.items())
            for sample in samples[:_SHOWN]
        )
        more = f" and {len(samples) - _SHOWN} more" if len(samples) > _SHOWN else ""
        problem = f"the loss of step {watched.step} is not finite; its batch: {first}{more}"
        raise NonFiniteLossError(problem, remedy=self._written(watched.step, samples))

    def _written(self, step: int, samples: list[dict[str, Any]]) -> str:
        remedy = "Look at these samples, lower the learning rate, or resume before this step"
        if self._folder is None:
            return remedy
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"nonfinite_step_{step}.json"
        path.write_text(json.dumps({"step": step, "samples": samples}, indent=1) + "\n")
        return f"All samples are in {path}. {remedy}"
