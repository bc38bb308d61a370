"""A mixture as a Lightning data module: training and validation on one engine, exact resume.

Lightning says how many batches it has trained on; the position that a checkpoint holds follows from
that number. So a batch that was fetched and not trained on is not lost, and the end of an epoch is
a position like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch

from headrace.config import Mixture
from headrace.errors import UsageError
from headrace.loader import LoaderOptions
from headrace.loader.loader import feed_of
from headrace.loader.mixture import open_sources
from headrace.loader.options import LoaderFields, WindowSpec, changed_options, option, with_options
from headrace.outputs.lightning.framework import (
    LightningDataModule,
    LightningModule,
    batches_trained,
    rank_and_world_size,
    takes_iterator,
)
from headrace.outputs.torch import TorchBatch, TorchLoader, ValidationLoader
from headrace.outputs.torch.device import checked_layout
from headrace.outputs.torch.loader import Decode, TorchOptions
from headrace.reading.local import shared_files

_log = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataModuleOptions(TorchOptions):
    """What a `HeadraceDataModule` takes beside the options of a `Loader`."""

    device: str | int | torch.device | None = option(
        "auto",
        '"auto": the trainer\'s; on a CUDA device batches arrive copied. None: batches stay on the '
        "CPU, and Lightning copies them.",
    )
    steps_per_epoch: int | None = option(
        None,
        "Batches of an epoch. None: an epoch has no end, and the trainer's `max_steps` or "
        "`limit_train_batches` stops training.",
    )


@with_options(DataModuleOptions, LoaderOptions)
class HeadraceDataModule(LightningDataModule):
    """The batches of a mixture for a Lightning trainer.

    >>> from headrace.outputs.lightning import HeadraceDataModule
    >>> data = HeadraceDataModule("oxe29.yaml", batch_size=64, image_size=256)  # doctest: +SKIP
    >>> trainer.fit(model, data)  # doctest: +SKIP

    Batches are those of `TorchLoader`, whose options it takes, and checks at once. The loader is
    made in the process that trains, when the trainer knows its rank and device.

    Checkpoints hold the position, also in the middle of an epoch. A resumed run continues with
    the next batch, and may have another batch size or number of ranks; another mixture or seed is
    an error. A second `fit` of the same trainer continues; a new trainer starts from the beginning.
    """

    def __init__(
        self,
        mixture: Mixture | str | Path,
        options: LoaderOptions | None = None,
        /,
        *,
        layout: str = "BCTHW",
        device: str | int | torch.device | None = "auto",
        pin: bool | None = None,
        decode: Decode = "cpu",
        steps_per_epoch: int | None = None,
        **changes: Unpack[LoaderFields],
    ) -> None:
        super().__init__()
        self.mixture = mixture if isinstance(mixture, Mixture) else Mixture.load(mixture)
        options = changed_options(LoaderOptions, options, changes, DataModuleOptions)
        DataModuleOptions(
            layout=layout, device=device, pin=pin, decode=decode, steps_per_epoch=steps_per_epoch
        )
        self.batch_size = options.batch_size  # by this name, Lightning's tuner may change it
        self.layout = checked_layout(layout)
        self.steps_per_epoch = steps_per_epoch
        self._device, self._pin, self._decode, self._options = device, pin, decode, options
        self._loader: TorchLoader | None = None
        self._state: dict[str, Any] = {}  # of the loader, where this run began
        self._loaded = False  # that state came from a checkpoint
        self._draws_a_batch = 0  # of all ranks
        self._handed = 0  # training batches handed out since then
        self._trained_before: int | None = None  # the trainer's count before the first of them

    @property
    def loader(self) -> TorchLoader:
        """The loader: its `statistics()`, `waited_s`, `batch_size`."""
        if self._loader is None:
            raise UsageError(
                "the data module has no loader now: it has one from setup to teardown",
                remedy="Use it in a hook or callback, or call `setup('fit')` yourself",
            )
        return self._loader

    @property
    def waited_s(self) -> float:
        """Seconds that training has waited for batches so far."""
        return self.loader.waited_s

    @property
    def shares(self) -> dict[str, float]:
        """Requested of each source."""
        return dict(self.loader.statistics().shares)

    # -- what Lightning calls ------------------------------------------------------------------

    def prepare_data(self) -> None:
        """Index what has no index yet, on one process of each machine while the others wait."""
        open_sources(self.mixture, WindowSpec("endpoints"), shared_files())

    def setup(self, stage: str) -> None:
        """Make the loader: by now the trainer has set up ranks and devices."""
        continues = self.trainer is None or self._loaded or batches_trained(self.trainer) > 0
        state = self.state_dict() if continues else {}
        if self._loader is None:
            self._loader = self._make_loader()
        if stage == "fit":
            self._begin(state or {**self._loader.state_dict(), "draws": 0})

    def train_dataloader(self) -> TrainingBatches:
        """Training batches, from the current position on."""
        if self.loader.batch_size != self.batch_size:  # the batch size finder changes it
            state = self.state_dict()
            self.loader.close()
            self._loader = self._make_loader()
            self._begin(state)
        return TrainingBatches(self)

    def val_dataloader(self) -> ValidationLoader:
        """A pass over the validation splits, with the same number of batches on every rank."""
        size, length = self.loader.batch_size, self.loader.validation_length()
        world_size = self.loader.options.world_size or 1
        # Ranks that step together must have the same number of batches: that of the last rank.
        left = length - (world_size - 1) * size
        batches = -(-left // (size * world_size))
        if batches < 1:
            raise UsageError(
                f"the validation splits have {length} samples: too few to give each of "
                f"{world_size} ranks one of the batches of {size}",
                remedy="Enlarge val_split, lower batch_size, or train with limit_val_batches=0",
            )
        return self.loader.validation(batches if world_size > 1 else None)

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Nothing where the loader has copied the batch; a model's own method comes first."""
        own = self.trainer.lightning_module if self.trainer is not None else None
        if own is not None:
            method = type(own).transfer_batch_to_device
            if method is not LightningModule.transfer_batch_to_device:
                return own.transfer_batch_to_device(batch, device, dataloader_idx)
        frames = batch.get("frames") if isinstance(batch, dict) else None
        if isinstance(frames, torch.Tensor) and frames.device == device:
            return batch
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def state_dict(self) -> dict[str, Any]:
        """Where training stands: plain values, the same on every rank, also after teardown."""
        if not self._state:
            return {}
        draws = self._state["draws"] + self._trained() * self._draws_a_batch
        return {**self._state, "draws": draws}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where a state was taken, also one of `TorchLoader` or `Loader`."""
        if self.trainer is not None and self.trainer.state.fn not in (None, "fit"):
            return  # weights to validate or test need no position
        if self._loader is not None:
            self._begin(state_dict)
        else:
            self._state, self._handed, self._trained_before = dict(state_dict), 0, None
        self._loaded = True

    def teardown(self, stage: str) -> None:
        """End the loader's threads and give its memory back."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None
        self._loaded = False

    def on_exception(self, exception: BaseException) -> None:
        """The same when training fails."""
        self.teardown("fit")

    # -- position ------------------------------------------------------------------------------

    def _make_loader(self) -> TorchLoader:
        options = replace(self._options, batch_size=self.batch_size)
        device = self._device
        if self.trainer is not None:
            if options.rank is None:
                rank, world_size = rank_and_world_size(self.trainer)
                options = replace(options, rank=rank, world_size=world_size)
            if device == "auto":
                root = self.trainer.strategy.root_device
                device = root if root.type == "cuda" else None
        return TorchLoader(
            self.mixture,
            options,
            layout=self.layout,
            device=None if device == "auto" else device,
            pin=self._pin,
            decode=self._decode,
        )

    def _begin(self, state: Mapping[str, Any]) -> None:
        """Make the batch after a state the next one."""
        self.loader.load_state_dict(state)
        self._state = feed_of(self.loader).state_dict()
        self._draws_a_batch = self.loader.batch_size * feed_of(self.loader).world_size
        self._handed, self._trained_before = 0, None

    def _trained(self) -> int:
        """Batches of this run that have been trained on."""
        if self._trained_before is None:
            return 0
        if self.trainer is None or takes_iterator(self.trainer):
            return self._handed
        trained = batches_trained(self.trainer) - self._trained_before
        return max(0, min(self._handed, trained))  # tuners set the count back

    def _batches(self) -> Iterator[TorchBatch]:
        trainer = self.trainer
        if self._trained_before is None:
            if trainer is not None and trainer.ckpt_path and not self._loaded:
                _log.warning(
                    "%s has no position of this data module: the sequence starts at its beginning",
                    trainer.ckpt_path,
                )
        elif trainer is not None and getattr(trainer, "overfit_batches", 0) > 0:
            self._begin(self._state)  # the same batches in every epoch
        elif self._handed != self._trained():  # fetched ahead, and dropped with its iterator
            self._begin(self.state_dict())
        if self._trained_before is None:
            # Only now: when a run is resumed, the trainer's count is loaded after our state.
            self._trained_before = 0 if trainer is None else batches_trained(trainer)
        batches = iter(self.loader)
        while True:
            yield self._hand_out(next(batches))  # no name for it: a batch must not be held

    def _hand_out(self, batch: TorchBatch) -> TorchBatch:
        self._handed += 1
        return batch


class TrainingBatches:
    """Batches of training as Lightning iterates over them. Made by `HeadraceDataModule`.

    Epochs are Lightning's: an iteration has no end of its own, and the next one continues.
    """

    def __init__(self, data: HeadraceDataModule) -> None:
        self._data = data

    @property
    def batch_size(self) -> int:
        """Samples a batch of this rank has."""
        return self._data.loader.batch_size

    def __iter__(self) -> Iterator[TorchBatch]:
        # A generator, so that nothing is read before the first `next`.
        yield from self._data._batches()

    def __len__(self) -> int:
        """Batches of an epoch. Like torch's DataLoader, a TypeError where there is no end."""
        if self._data.steps_per_epoch is None:
            raise TypeError("without steps_per_epoch an epoch has no end")
        return self._data.steps_per_epoch

    def __bool__(self) -> bool:
        return True

    def state_dict(self) -> dict[str, Any]:
        """The data module's. Lightning takes a loader that has a state to resume exactly."""
        return self._data.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """For a checkpoint of a run that had a `TorchLoader` and no data module."""
        if not self._data._loaded:
            self._data.load_state_dict(state)
