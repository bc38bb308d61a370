"""A watched loop in a run folder: the files that a benchmark writes, and the doctor's own."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.errors import DataError, UsageError
from headrace.loader.feed import MixtureFeed
from headrace.measure.archive import write_json
from headrace.measure.batch_times import BatchTimes
from headrace.measure.bench.result import summarise
from headrace.measure.bench.supervise import Outcome
from headrace.measure.machine import machine_facts
from headrace.measure.memory_lines import MemoryLines
from headrace.tuning.doctor.evidence import Evidence
from headrace.tuning.doctor.verdict import Verdict

__all__ = ["FILE", "Recording", "read_evidence"]

FILE = "doctor.json"


class Recording:
    """Writes `batch_times.jsonl` as the loop goes, and the rest at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._memory = MemoryLines(folder / "memory.jsonl")
            self._times: BatchTimes | None = BatchTimes(folder / "batch_times.jsonl")
        except OSError as error:
            raise UsageError(
                f"the run cannot be recorded in {str(folder)!r}: {error.strerror}",
                remedy="Give another folder (run=, or HEADRACE_RUN)",
            ) from None

    def batch(
        self,
        now: float,
        wait_s: float,
        step_s: float,
        samples: int,
        counts: dict[str, int],
        warm: bool,
    ) -> None:
        """A batch has arrived. A disk that is full ends the recording, not the training."""
        if self._times is None:
            return
        try:
            self._times.add(
                now=now,
                wait_s=wait_s,
                step_s=step_s,
                samples=samples,
                counts=counts,
                warmup=not warm,
            )
            self._memory.again()
        except OSError:
            self._end()

    def close(
        self,
        evidence: Evidence,
        verdict: Verdict,
        loader: MixtureFeed | None,
        error: BaseException | None,
    ) -> None:
        """Write what came of it."""
        self._end()
        write_json(
            self._folder / FILE, {"evidence": evidence.to_dict(), "verdict": verdict.to_dict()}
        )
        if not (self._folder / "result.json").exists():  # else the training program's own
            write_json(self._folder / "result.json", self._result(evidence, loader, error))

    def _end(self) -> None:
        if self._times is not None:
            with contextlib.suppress(OSError):
                self._times.close()
                self._memory.close()
            self._times = None

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
                "asked": loader.statistics().asked,
            }
        status, cause = _ending(error)
        options = loader.options if loader is not None else None
        request = {
            "name": self._folder.resolve().name,
            "backend": "headrace" if loader is not None else "unknown",
            "job": {} if options is None else _plain(asdict(options)),
            "settings": {"compute_ms": None},
            "machine": machine_facts(),
        }
        outcome = Outcome(status, cause, None, self._memory.rss, self._memory.anonymous)
        return summarise(self._folder, request, outcome, limit)


def _ending(error: BaseException | None) -> tuple[str, str | None]:
    if error is None:
        return "complete", None
    if isinstance(error, KeyboardInterrupt):
        return "incomplete", "interrupted (Ctrl-C)"
    return "failed", f"{type(error).__name__}: {error}"


def read_evidence(folder: Path) -> Evidence | None:
    """What a doctor has left in a run folder; None if there was none."""
    try:
        return Evidence.from_dict(json.loads((folder / FILE).read_text())["evidence"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{FILE} cannot be read ({error})",
            file=str(folder / FILE),
            remedy="Remove it: the rest of the run is then examined",
        ) from None


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "window"}
