"""Callbacks for a Lightning trainer; each may be used alone, also without the data module."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from headrace.engine.machine import available_memory, descendants
from headrace.engine.statistics import BudgetStatistics
from headrace.errors import UsageError
from headrace.measure.clock import Step, StepClock
from headrace.measure.runs import RESULT, RunWriter, damage_note, outcome_of, read_object
from headrace.outputs.lightning.datamodule import HeadraceDataModule
from headrace.outputs.lightning.framework import (
    Callback,
    LightningModule,
    Trainer,
    batches_trained,
    logged_step,
)
from headrace.outputs.torch import GpuReader, TorchLoader, peak_flops

_MB = 1e6
#: A killed run loses at most the records of this many seconds, or of this many batches.
_WRITE_SECONDS = 2.0
_WRITE_BATCHES = 256
#: Seconds between two readings at least; one of memory takes under a millisecond.
_LOOK_SECONDS = 1.0
#: The program that result.json names.
_PROGRAM = "lightning"


def default_callbacks(
    folder: str | Path | None = None, *, every_n_steps: int | None = None
) -> list[Callback]:
    """One of each: `Trainer(callbacks=default_callbacks("runs/first"))`.

    batch_times.jsonl, memory.jsonl and result.json go into the folder; None: the trainer's log
    folder. They log every `every_n_steps` batches; None: as often as the trainer logs.
    """
    return [
        ProgressLine(every_n_steps),
        Throughput(every_n_steps),
        DatasetUsage(every_n_steps),
        BatchMix(folder),
        Memory(every_n_steps, folder=folder),
        GpuUsage(every_n_steps),
        Summary(folder),
    ]


# -- the trainer's loader, and what a batch holds --------------------------------------------------


def find_loader(trainer: Trainer) -> TorchLoader | None:
    """The data module's loader, or the one given to `fit`; None: batches come from elsewhere."""
    data: Any = getattr(trainer, "datamodule", None)
    if isinstance(data, HeadraceDataModule):
        return data.loader
    return next((x for x in _leaves(trainer.train_dataloader) if isinstance(x, TorchLoader)), None)


def _find_waits(trainer: Trainer) -> Callable[[], float] | None:
    """Seconds waited for batches so far, by the loader or a data module that has `waited_s`."""
    found: Any = find_loader(trainer) or getattr(trainer, "datamodule", None)
    return (lambda: float(found.waited_s)) if hasattr(found, "waited_s") else None


def _find_shares(trainer: Trainer) -> dict[str, float]:
    """Requested of each dataset, by the loader or a data module that has `shares`."""
    loader = find_loader(trainer)
    if loader is not None:
        return dict(loader.statistics().shares)
    return dict(getattr(getattr(trainer, "datamodule", None), "shares", {}))


def _samples(batch: Any) -> int:
    """The length of a batch's first tensor."""
    if isinstance(batch, Mapping) and isinstance(batch.get("draws"), Tensor):
        return len(batch["draws"])
    found = next((x for x in _leaves(batch) if isinstance(x, Tensor) and x.ndim > 0), None)
    return 0 if found is None else len(found)


def _dataset_counts(batch: Any) -> Tensor | None:
    """Samples of each of `names` in a batch, on its device; None: the batch does not tell.

    This does not wait for the device. Reading the counts does, so callers read many at once.
    """
    if not isinstance(batch, Mapping) or "names" not in batch:
        return None
    dataset = batch.get("dataset")
    if not isinstance(dataset, Tensor):
        return None
    ones = torch.ones_like(dataset, dtype=torch.int64)
    counts = torch.zeros(len(batch["names"]), dtype=torch.int64, device=dataset.device)
    return counts.index_add_(0, dataset, ones)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


# -- when a callback reports, and where ------------------------------------------------------------


def checked_interval(every_n_steps: int | None) -> int | None:
    """Batches between two reports; None: the trainer's `log_every_n_steps`."""
    if every_n_steps is not None and every_n_steps < 1:
        raise UsageError(
            f"every_n_steps is {every_n_steps}",
            remedy="Give a number from 1 upwards, or nothing for the trainer's log_every_n_steps",
        )
    return every_n_steps


def _due(trainer: Trainer, every_n_steps: int | None) -> bool:
    """Whether to report after this batch; never where the trainer logs nothing (0)."""
    every: int = trainer.log_every_n_steps if every_n_steps is None else every_n_steps  # type: ignore[attr-defined]
    return every > 0 and batches_trained(trainer) % every == 0


def _log(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """Hand numbers to the loggers, under the step that Lightning's own have, and to callbacks."""
    for logger in trainer.loggers:
        logger.log_metrics(dict(metrics), step=logged_step(trainer))
    trainer.callback_metrics.update(
        {name: torch.tensor(float(value)) for name, value in metrics.items()}
    )


def _print(trainer: Trainer, line: str) -> None:
    """Print a line on the first rank, above a progress bar if there is one."""
    if trainer.global_rank != 0:
        return
    bar = trainer.progress_bar_callback
    if bar is not None and getattr(bar, "is_enabled", True):
        bar.print(line)
    else:
        print(line, flush=True)


def _run_folder(trainer: Trainer, folder: str | Path | None) -> Path:
    """Where a run's files go. All ranks must call it: the trainer broadcasts the first rank's."""
    return Path(folder or trainer.log_dir or trainer.default_root_dir)


# -- the callbacks ---------------------------------------------------------------------------------


class _Timed(Callback):
    """A callback with the clock of the training loop, which stands still during validation."""

    _warmup = 1

    def __init__(self) -> None:
        self._loader: TorchLoader | None = None
        self._waits: Callable[[], float] | None = None  # None: nothing counts them
        self._world_size = 1
        self._clock = StepClock()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._loader = loader = find_loader(trainer)
        self._world_size = trainer.world_size
        if loader is not None:
            self._world_size = loader.options.world_size or 1
        self._waits = _find_waits(trainer)
        self._clock = StepClock(warmup=self._warmup, waits=self._waits)
        self._clock.begin()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clock.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clock.resume()


class ProgressLine(Callback):
    """Prints `[Step N] loss=... lr=... epoch=...`, which a log file keeps and a bar does not."""

    def __init__(self, every_n_steps: int | None = None) -> None:
        self._every = checked_interval(every_n_steps)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if _due(trainer, self._every):  # only then is the device waited for
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            parts = [f"loss={float(loss):.4f}"] if isinstance(loss, Tensor | float) else []
            if trainer.optimizers:
                parts.append(f"lr={trainer.optimizers[0].param_groups[0]['lr']:.3g}")
            parts.append(f"epoch={trainer.current_epoch}")
            _print(trainer, f"[Step {trainer.global_step}] {' '.join(parts)}")


class Throughput(_Timed):
    """Logs `perf/samples_per_sec`, `perf/steps_per_sec` and `perf/data_wait_frac`.

    Each over the batches since the last time, without the very first batch and without validation.
    Samples are those of all ranks; steps are calls of `training_step`. The wait is measured by the
    loader, on this rank, or by a data module of your own that counts its seconds in `waited_s`;
    without either it is not logged.
    """

    def __init__(self, every_n_steps: int | None = None) -> None:
        super().__init__()
        self._every = checked_interval(every_n_steps)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        clock = self._clock
        clock.end(_samples(batch) * self._world_size)
        if not clock.steps or not _due(trainer, self._every):
            return
        metrics = {
            "perf/samples_per_sec": clock.samples / clock.seconds,
            "perf/steps_per_sec": clock.steps / clock.seconds,
        }
        if self._waits is not None:
            metrics["perf/data_wait_frac"] = clock.wait_s / clock.seconds
        _log(trainer, metrics)
        clock.clear()
        clock.begin()


class DatasetUsage(Callback):
    """Prints the samples of each dataset since the last time, and logs actual and requested shares.

    The line is `[DatasetUsage] step=N interval_total=N name=count (pct%) ...`, most first; the
    metrics are `usage/actual/NAME` and, with a headrace loader, `usage/requested/NAME`, as shares.
    A last line has the shares of the whole run; after a resume it says since which step. Samples
    are those of the first rank: its slice of each global batch is drawn as those of the others.
    """

    def __init__(self, every_n_steps: int | None = None) -> None:
        self._every = checked_interval(every_n_steps)
        self._requested: dict[str, float] = {}
        self._names: tuple[str, ...] = ()
        self._interval: Tensor | None = None
        self._total: dict[str, int] = {}
        self._begun = 0  # the step at which this run began, or resumed

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._requested = _find_shares(trainer)
        self._interval, self._total, self._begun = None, {}, trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        counts = _dataset_counts(batch)
        if counts is not None:
            self._names = tuple(batch["names"])
            self._interval = counts if self._interval is None else self._interval + counts
        if _due(trainer, self._every) and (actual := self._take()):
            total = sum(actual.values())
            _log(
                trainer,
                {f"usage/actual/{name}": n / total for name, n in actual.items()}
                | {f"usage/requested/{name}": share for name, share in self._requested.items()},
            )
            shown = " ".join(f"{name}={n} ({n / total:.1%})" for name, n in _most_first(actual))
            _print(
                trainer, f"[DatasetUsage] step={trainer.global_step} interval_total={total} {shown}"
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._take()
        total = sum(self._total.values())
        if total:
            shown = " ".join(
                f"{name}={n / total:.2%}"
                + (f" (requested {self._requested[name]:.2%})" if name in self._requested else "")
                for name, n in _most_first(self._total)
            )
            since = f" since step {self._begun}" if self._begun else ""
            _print(trainer, f"[DatasetUsage] total={total}{since} {shown}")

    def _take(self) -> dict[str, int]:
        """Counts since the last time; the device is waited for here."""
        if self._interval is None:
            return {}
        counts = self._interval.tolist()
        self._interval = None
        actual = dict(zip(self._names, counts, strict=True))
        for name, n in actual.items():
            self._total[name] = self._total.get(name, 0) + n
        return actual


def _most_first(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])


class BatchMix(_Timed):
    """Writes batch_times.jsonl into the run folder, from which `headrace report` draws.

    `dt_s` is the time since the end of the previous step, without validation; `fetch_dt_s` is the
    part of it spent waiting for data, null without a headrace loader. The first `warmup` batches of
    a run are marked and do not count in reports. A resumed run continues the file, and replaces
    what came after its checkpoint. Damaged frames that the loader has passed over are listed in
    damaged.jsonl. The first rank writes, about its own slice.
    """

    def __init__(self, folder: str | Path | None = None, *, warmup: int = 8) -> None:
        super().__init__()
        self._folder, self._warmup = folder, warmup
        self._run: RunWriter | None = None
        self._rows: list[tuple[Step, int, tuple[str, ...], Tensor | None]] = []
        self._written = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = _run_folder(trainer, self._folder)
        self._rows = []
        if trainer.global_rank == 0:
            self._run = RunWriter(folder, batches=True, resume=batches_trained(trainer))
        super().on_train_start(trainer, pl_module)
        self._written = perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._run is None:
            return
        counts = _dataset_counts(batch)  # the device may still be computing them
        names = () if counts is None else tuple(batch["names"])
        step = self._clock.end()
        self._rows.append((step, _samples(batch), names, counts))
        if step.now - self._written > _WRITE_SECONDS or len(self._rows) >= _WRITE_BATCHES:
            self._write()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._close(trainer)

    def _write(self) -> None:
        """Write the batches so far; the device is waited for here, once for all of them."""
        if self._run is None:
            return
        if self._loader is not None:
            self._run.damaged(self._loader.statistics().damaged)
        rows, self._rows = self._rows, []
        tensors = [counts for *_, counts in rows if counts is not None]
        same = {len(counts) for counts in tensors}
        counted = iter(
            torch.stack(tensors).tolist() if len(same) == 1 else [x.tolist() for x in tensors]
        )
        for step, samples, names, counts in rows:
            values = next(counted) if counts is not None else []
            actual = {name: n for name, n in zip(names, values, strict=True) if n}
            self._run.batch(
                step, samples=samples, counts=actual, knows_wait=self._waits is not None
            )
        self._written = perf_counter()

    def _close(self, trainer: Trainer) -> None:
        if self._run is not None:
            self._write()
            self._run.close()
            if note := damage_note(self._run.folder):
                _print(trainer, f"[BatchMix] {note}")
            self._run = None


class Memory(Callback):
    """Logs `memory/anonymous_mb`, `.../available_mb` and its minimum, and the loader's budget.

    Anonymous is what this process and its children hold and cannot drop; available is what the
    machine or control group has left, and its minimum is that of the whole run. Memory is read once
    a second, between batches, and written to memory.jsonl in the run folder for `headrace report`.
    The first rank reports, for its own processes.
    """

    def __init__(
        self, every_n_steps: int | None = None, *, folder: str | Path | None = None
    ) -> None:
        self._every = checked_interval(every_n_steps)
        self._folder = folder
        self._loader: TorchLoader | None = None
        self._run: RunWriter | None = None
        self._looked = -math.inf
        self._least = self._most = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._loader = find_loader(trainer)
        folder = _run_folder(trainer, self._folder)
        self._least, self._most, self._looked = math.inf, 0.0, -math.inf
        if trainer.global_rank == 0:
            self._run = RunWriter(folder, memory=True, resume=batches_trained(trainer))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        due = _due(trainer, self._every)
        if not due and perf_counter() - self._looked <= _LOOK_SECONDS:
            return
        anonymous, available = self._look()
        if due:
            sizes = {"anonymous": anonymous, "available": available, "available_min": self._least}
            if (budget := self._budget()) is not None:
                sizes |= {"budget": budget.limit, "budget_held": budget.held}
            _log(trainer, {f"memory/{name}_mb": size / _MB for name, size in sizes.items()})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._look()
        held = ""
        if (budget := self._budget()) is not None:
            held = f" budget={budget.limit / _MB:,.0f} MB (most held {budget.peak / _MB:,.0f})"
        _print(
            trainer,
            f"[Memory] anonymous={self._most / _MB:,.0f} MB at most{held} "
            f"available={self._least / _MB:,.0f} MB at least",
        )
        self._close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None

    def _look(self) -> tuple[int, int]:
        """Anonymous and available bytes now."""
        self._looked = perf_counter()
        anonymous, available = tree_anonymous(os.getpid()), available_memory()
        self._most = max(self._most, anonymous)
        self._least = min(self._least, available)
        if self._run is not None:
            self._run.memory(anonymous=anonymous, available=available)
        return anonymous, available

    def _budget(self) -> BudgetStatistics | None:
        return None if self._loader is None else self._loader.statistics().engine.budget


def tree_anonymous(pid: int) -> int:
    """Bytes that a process and its descendants hold and cannot drop.

    From the kernel's running counts, cheap enough for every second: walking the pages (smaps) takes
    tens of milliseconds in a process with a model in it. Shared memory counts once, in the first
    process: the loader's slots are mapped there, and its workers map the same ones.
    """
    total = 0
    for process in descendants(pid):
        with suppress(OSError):  # it has ended meanwhile
            for line in Path(f"/proc/{process}/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name == "RssAnon" or (name == "RssShmem" and process == pid):
                    total += int(value.split()[0]) << 10
    return total


class GpuUsage(_Timed):
    """Logs `gpu/utilization_percent`, `gpu/memory_mb` and `gpu/mfu` of a run on a CUDA device.

    Utilisation is the share of the time in which the GPU had anything to do, and memory what all
    processes hold of it, both as nvidia-smi shows them: read by NVML (`nvidia-ml-py`) once a second
    at most, at the end of a step; where NVML fails, one warning, and training continues. MFU is the
    share of the peak that the model's own operations reach: it needs `flops_per_step` (a call of
    `training_step` on this rank) and the device's peak, which is known of many. The first rank
    reports, about its own device; a run without a GPU has none of this.
    """

    def __init__(
        self,
        every_n_steps: int | None = None,
        *,
        flops_per_step: float | None = None,
        peak_flops: float | None = None,
    ) -> None:
        super().__init__()
        self._every = checked_interval(every_n_steps)
        self._flops, self._peak = flops_per_step, peak_flops
        self._device: torch.device | None = None
        self._reader: GpuReader | None = None
        self._name, self._total, self._most = "", 0, 0
        self._utilization: list[float] = []
        self._looked = math.inf
        self._steps, self._seconds = 0, 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        device = trainer.strategy.root_device
        self._utilization, self._steps, self._seconds = [], 0, 0.0
        if device.type != "cuda" or trainer.global_rank != 0:
            return
        about = torch.cuda.get_device_properties(device)
        self._device, self._name = device, about.name
        self._total, self._most = about.total_memory, 0
        self._peak = self._peak or peak_flops(about.name)
        self._reader = GpuReader(device)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        self._looked = perf_counter()  # the next reading is of training alone

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._device is None:
            return
        now = self._clock.end().now
        if self._clock.ended == 1:
            self._looked = now  # much of the first step happens once
        elif now - self._looked > _LOOK_SECONDS:
            self._look(now)
        if self._clock.steps and _due(trainer, self._every):
            self._report(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._finish()
        if (found := self.figures()) is not None:
            used = found["utilization_percent"]
            busy = f"utilization {used['mean']:.0f}% (p10 {used['p10']:.0f}%), " if used else ""
            peak, total = (found[f"memory_{each}_bytes"] / 1e9 for each in ("peak", "total"))
            _print(trainer, f"[GPU] {self._name}: {busy}memory {peak:.1f} of {total:.1f} GB")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._finish()

    def figures(self) -> dict[str, Any] | None:
        """As result.json has it under `gpu`; None without a GPU, and on other ranks."""
        if self._device is None:
            return None
        used = torch.tensor(self._utilization, dtype=torch.float64)
        return {
            "name": self._name,
            "utilization_percent": {"mean": float(used.mean()), "p10": float(used.quantile(0.1))}
            if len(used)
            else None,
            "memory_peak_bytes": self._most,
            "memory_total_bytes": self._total,
            "mfu": self._mfu(self._steps, self._seconds),
        }

    def _look(self, now: float) -> None:
        self._looked = now
        reading = self._reader.read() if self._reader is not None else None
        if reading is not None:
            self._most = max(self._most, reading.memory_used)
            self._total = reading.memory_total
            if reading.utilization is not None:
                self._utilization.append(reading.utilization)

    def _report(self, trainer: Trainer) -> None:
        clock = self._clock
        self._steps, self._seconds = self._steps + clock.steps, self._seconds + clock.seconds
        values = {"memory_mb": self._most / _MB if self._most else None}
        values["utilization_percent"] = self._utilization[-1] if self._utilization else None
        values["mfu"] = self._mfu(clock.steps, clock.seconds)
        _log(trainer, {f"gpu/{name}": x for name, x in values.items() if x is not None})
        clock.clear()

    def _finish(self) -> None:
        """The rest of the run; one reading at least, and the allocator's own peak of memory."""
        if self._reader is None or self._device is None:
            return
        if not self._utilization:
            self._look(perf_counter())
        self._reader.close()
        self._reader = None
        self._steps += self._clock.steps
        self._seconds += self._clock.seconds
        self._most = max(self._most, torch.cuda.max_memory_reserved(self._device))

    def _mfu(self, steps: int, seconds: float) -> float | None:
        if not steps or not self._flops or not self._peak:
            return None
        return self._flops * steps / seconds / self._peak


class Summary(_Timed):
    """Prints `[Summary] N steps, samples/s, waiting for data` at the end, and writes result.json.

    Validation and the very first batch do not count; samples are those of all ranks, the wait is
    the first rank's. A run that fails or is interrupted has both, too. During training there is no
    result.json, so that a killed run does not look like one that ended; one that another program
    wrote is left as it is.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__()
        self._folder = folder
        self._path: Path | None = None  # None: not the first rank, or written already
        self._requested: dict[str, float] = {}  # share of each source

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = _run_folder(trainer, self._folder)
        super().on_train_start(trainer, pl_module)
        self._path = folder / RESULT if trainer.global_rank == 0 else None
        self._requested = _find_shares(trainer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Remove the result of the run that this one resumes.

        Not before there is a batch: a run with nothing left to train keeps its result.
        """
        if self._clock.ended or self._path is None:
            return
        if read_object(self._path)[0].get("program") == _PROGRAM:
            self._path.unlink()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._clock.end(_samples(batch) * self._world_size)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._finish(trainer, "complete", None)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        outcome = outcome_of(exception)
        stopped = outcome.status == "interrupted"
        cause = f"stopped at step {trainer.global_step:,}" if stopped else outcome.cause
        self._finish(trainer, outcome.status, cause)

    def _finish(self, trainer: Trainer, status: str, cause: str | None) -> None:
        path, self._path = self._path, None
        if path is None:
            return
        numbers: dict[str, Any] = {
            "program": _PROGRAM,
            "steps": trainer.global_step,
            "world": self._world_size,
        }
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        gpu = next((x for x in callbacks if isinstance(x, GpuUsage)), None)
        if gpu is not None and (found := gpu.figures()) is not None:
            numbers["gpu"] = found
        if self._loader is not None:
            numbers["backend"] = "headrace"
        if self._requested:
            numbers["mixture"] = {name: {"asked": x} for name, x in self._requested.items()}
        clock = self._clock
        parts = [f"{trainer.global_step:,} steps"]
        if clock.seconds:
            numbers["samples_per_s"] = clock.samples / clock.seconds
            parts.append(f"{clock.samples / clock.seconds:,.0f} samples/s")
            if self._waits is not None:
                numbers["stall_s_per_step"] = clock.wait_s / clock.steps
                numbers["loader_share"] = clock.wait_s / clock.seconds
                parts.append(f"waiting for data {clock.wait_s / clock.seconds:.1%} of the time")
        if not path.exists():
            RunWriter(path.parent).finish(status, cause, numbers)
        _print(trainer, f"[Summary] {status}: {', '.join(parts)}")
