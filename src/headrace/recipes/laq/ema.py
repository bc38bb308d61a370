"""A slow average of the weights, which validates and is saved in place of the last ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import UsageError
from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer
from headrace.recipes.laq.nsvq import Nsvq

__all__ = ["Ema", "decay_at"]

_KEY = "ema"  # in a checkpoint
_WARMUP = 10


def decay_at(updates: int, decay: float) -> float:
    """The decay of update number `updates`, the first being 0.

    It rises with the steps, so that the average does not remember the new model for long.

    >>> [round(decay_at(n, 0.999), 3) for n in (0, 10, 100, 10_000)]
    [0.1, 0.55, 0.918, 0.999]
    """
    return min(decay, (1 + updates) / (_WARMUP + updates))


class Ema(Callback):
    """Averages what is trained: after every step, average = decay * average + (1 - decay) * now.

    Validation sees the averaged weights, and checkpoints hold them as the model's
    (`load_from_checkpoint` gives the average); those that training goes on with are saved beside
    them, so that a resumed run is the same as one that was not stopped. A checkpoint of a run
    without averages is taken as the first average. A checkpoint of weights only
    (`save_weights_only`) has the last weights: Lightning asks no callback about it.

    Frozen weights and buffers are not averaged but used as they are. A code that was replaced by
    hand starts anew in the average: half-way between its old and its new place it would be nothing.

    Takes the memory of the weights once more. One process or DDP; no sharded weights.
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise UsageError(f"the decay of the average is {decay}", remedy="Give 0 <= decay < 1")
        self._decay = decay
        self._updates = 0
        self._step = 0  # of the trainer, when the average was updated last
        self._average: dict[str, Tensor] = {}
        self._swapped = False
        self._codes: list[tuple[str, Tensor]] = []  # codebooks as the optimizer left them

    # -- what Lightning calls ------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with the weights as they are, or where a checkpoint was taken."""
        trained = _trained(pl_module)
        if set(self._average) != set(trained):
            self._average, self._updates = {}, 0
        for name, weight in trained.items():
            kept = self._average.get(name)
            fresh = weight.detach().clone() if kept is None else kept.to(weight.device)
            self._average[name] = fresh
        self._step = trainer.global_step
        self._note_codes(pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Codes may have been replaced since the last step."""
        self._take_replaced_codes(pl_module)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Once a step of the optimizer, which may take several batches."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        trained = _trained(pl_module)
        averages = [self._average[name] for name in trained]
        weights = [weight.detach() for weight in trained.values()]
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, 1 - decay_at(self._updates, self._decay))
        self._updates += 1
        self._note_codes(pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The averaged weights take their place; a checkpoint given to `validate` has them."""
        fitting = trainer.state.fn == "fit"
        if self._average and not self._swapped and (fitting or not trainer.ckpt_path):
            self._take_replaced_codes(pl_module)
            self._swap(pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training goes on with its own."""
        self._swap_back(pl_module)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """The same when validation fails."""
        self._swap_back(pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Small, and there, so that Lightning warns when a run is resumed without the callback."""
        return {"updates": self._updates}

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """The average as the model's weights, the last weights beside them."""
        if not self._average:
            return
        if not self._swapped:
            self._take_replaced_codes(pl_module)
        now = {name: weight.detach() for name, weight in _trained(pl_module).items()}
        last, average = (self._average, now) if self._swapped else (now, self._average)
        checkpoint[_KEY] = {"updates": self._updates, "last": dict(last)}
        checkpoint["state_dict"] = {**checkpoint["state_dict"], **average}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Go on with the last weights; the model has been given the average already."""
        if trainer.state.fn != "fit":
            return
        self._average, self._updates, self._swapped = {}, 0, False
        if _KEY not in checkpoint:
            return
        saved = checkpoint[_KEY]
        self._updates = int(saved["updates"])
        with torch.no_grad():
            for name, weight in _trained(pl_module).items():
                self._average[name] = weight.detach().clone()
                weight.copy_(saved["last"][name])

    # -- the rest ------------------------------------------------------------------------------

    def _swap(self, module: LightningModule) -> None:
        """Exchange memory instead of numbers: exact, and nothing is copied."""
        for name, weight in _trained(module).items():
            weight.data, self._average[name] = self._average[name], weight.data
        self._swapped = not self._swapped

    def _swap_back(self, module: LightningModule) -> None:
        if self._swapped:
            self._swap(module)

    def _note_codes(self, module: LightningModule) -> None:
        books = _codebooks(module)
        self._codes = [(name, book.detach().clone()) for name, book in books.items()]

    def _take_replaced_codes(self, module: LightningModule) -> None:
        """Rows of a codebook that are not as the optimizer left them, into the average."""
        books = _codebooks(module)
        for name, before in self._codes:
            now = books[name].detach().to(before.device)  # after a run the model is on the CPU
            replaced = (now != before).any(1, keepdim=True)
            self._average[name].copy_(torch.where(replaced, now, self._average[name]))
            before.copy_(now)


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in module.named_parameters() if weight.requires_grad}


def _codebooks(module: nn.Module) -> dict[str, nn.Parameter]:
    """Codebooks by the names of their weights."""
    found = [(name, m) for name, m in module.named_modules() if isinstance(m, Nsvq)]
    books = {f"{name}.codebook" if name else "codebook": m.codebook for name, m in found}
    return {name: book for name, book in books.items() if book.requires_grad}
