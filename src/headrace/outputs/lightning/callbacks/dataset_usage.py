"""Which datasets the samples of training came from, and which were asked for."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from headrace.outputs.lightning.callbacks.loading import dataset_counts, find_loader
from headrace.outputs.lightning.callbacks.reporting import checked_interval, due, log, say
from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer

__all__ = ["DatasetUsage"]


class DatasetUsage(Callback):
    """Prints what each dataset gave since the last time, and logs it beside what was asked for.

    The line is `[DatasetUsage] step=N interval_total=N name=count (pct%) ...`, most first; the
    metrics are `usage/served/NAME` and, with a headrace loader, `usage/asked/NAME`, as shares. A
    last line has the shares of the whole run. Samples are those of the first rank, whose slice of
    each global batch is as good as any other.
    """

    def __init__(self, every_n_steps: int | None = None) -> None:
        self._every = checked_interval(every_n_steps)
        self._asked: dict[str, float] = {}
        self._names: tuple[str, ...] = ()
        self._interval: Tensor | None = None
        self._total: dict[str, int] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What is asked for stays the same."""
        loader = find_loader(trainer)
        self._asked = {} if loader is None else loader.statistics().asked
        self._interval, self._total = None, {}

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count where the batch is, and say it when it is time."""
        counts = dataset_counts(batch)
        if counts is not None:
            self._names = tuple(batch["names"])
            self._interval = counts if self._interval is None else self._interval + counts
        if due(trainer, self._every) and (served := self._take()):
            total = sum(served.values())
            log(
                trainer,
                {f"usage/served/{name}": n / total for name, n in served.items()}
                | {f"usage/asked/{name}": share for name, share in self._asked.items()},
            )
            shown = " ".join(f"{name}={n} ({n / total:.1%})" for name, n in _most_first(served))
            say(
                trainer, f"[DatasetUsage] step={trainer.global_step} interval_total={total} {shown}"
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The shares of the whole run."""
        self._take()
        total = sum(self._total.values())
        if total:
            shown = " ".join(
                f"{name}={n / total:.2%}"
                + (f" (asked {self._asked[name]:.2%})" if name in self._asked else "")
                for name, n in _most_first(self._total)
            )
            say(trainer, f"[DatasetUsage] total={total} {shown}")

    def _take(self) -> dict[str, int]:
        """What was served since the last time: here the device is waited for."""
        if self._interval is None:
            return {}
        counts = self._interval.tolist()
        self._interval = None
        served = dict(zip(self._names, counts, strict=True))
        for name, n in served.items():
            self._total[name] = self._total.get(name, 0) + n
        return served


def _most_first(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])
