"""A watched loop in a run folder: the files that a benchmark writes, and the doctor's own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from headrace.engine.machine import available_memory
from headrace.loader.feed import MixtureFeed
from headrace.measure.evidence import Evidence
from headrace.measure.machine import MemoryWatch, machine_facts
from headrace.measure.runs import DOCTOR, RunWriter, Step, outcome_of, summarise, write_json
from headrace.measure.verdict import Verdict

__all__ = ["Recording"]

_LOOK_SECONDS = 1.0  # between two looks at memory, which take at most half a percent of the time
_PAUSE = 200


class Recording:
    """Writes `batch_times.jsonl` and `memory.jsonl` as the loop goes, and the rest at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run = RunWriter(folder, batches=True, memory=True)
        self._tree = MemoryWatch(os.getpid())
        self._next = 0.0
        self._full = False

    def batch(self, step: Step, samples: int, counts: Mapping[str, int]) -> None:
        """A batch has arrived. A disk that is full ends the recording, not the training."""
        if self._full:
            return
        try:
            self._run.batch(step, samples=samples, counts=counts)
            now = perf_counter()
            if now >= self._next:
                held = self._tree.now()
                self._run.memory(
                    anonymous=held.anonymous, available=available_memory(), rss=held.rss
                )
                self._next = now + max(_LOOK_SECONDS, _PAUSE * (perf_counter() - now))
        except OSError:
            self._full = True

    def close(
        self,
        evidence: Evidence,
        verdict: Verdict,
        loader: MixtureFeed | None,
        error: BaseException | None,
    ) -> None:
        """Write what came of it."""
        with contextlib.suppress(OSError):
            self._run.close()
        write_json(
            self._folder / DOCTOR, {"evidence": evidence.to_dict(), "verdict": verdict.to_dict()}
        )
        if not (self._folder / "result.json").exists():  # else the training program's own
            write_json(self._folder / "result.json", self._result(evidence, loader, error))

    def _result(
        self, evidence: Evidence, loader: MixtureFeed | None, error: BaseException | None
    ) -> dict[str, Any]:
        limit = None
        if evidence.decode_limit is not None and evidence.storage_limit is not None and loader:
            size = sum(source.share * source.bytes for source in evidence.sources)
            limit = {
                "decode_limit_samples_per_s": evidence.decode_limit,
                "storage_limit_samples_per_s": evidence.storage_limit,
                "storage_limit_bytes_per_s": evidence.storage_limit * size,
                "asked": loader.statistics().shares,
            }
        options = loader.options if loader is not None else None
        request = {
            "name": self._folder.resolve().name,
            "backend": "headrace" if loader is not None else "unknown",
            "job": {} if options is None else _plain(asdict(options)),
            "settings": {"compute_ms": None},
            "machine": machine_facts(),
        }
        outcome = replace(
            outcome_of(error),
            peak_rss=self._run.peak_rss,
            peak_anonymous=self._run.peak_anonymous,
            min_available=self._run.min_available,
        )
        return summarise(self._folder, request, outcome, limit)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "window"}
