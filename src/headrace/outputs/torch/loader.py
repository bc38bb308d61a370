"""The loader for torch: an iterable of dicts of tensors.

What trainers need to know (seen with Lightning 2.6 and accelerate 1.15):

- Lightning takes the loader and its `validation(...)` as they are. Give `steps_per_epoch` (or the
  trainer's `limit_train_batches`): without a length it holds one batch ahead, and its checkpoints
  count that one as trained. It saves the loader's state in every checkpoint, but loads it only in
  mid-epoch or when `max_steps` is set: from the end of an epoch under `max_epochs` the sequence
  would start again. The data module of `headrace.outputs.lightning` has neither problem.
- accelerate's `prepare` hands it back as it is: give `device=accelerator.device`, and
  `register_for_checkpointing(loader)` to have its state saved and loaded.
- In Lightning's `self.log` give `batch_size`: it guesses right, but the texts make it warn.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NoReturn, Self, TypeAlias, Unpack, cast
from weakref import WeakMethod

import torch
import torch.distributed
from torch.utils.data import IterableDataset

from headrace.config import Mixture
from headrace.config.typed import check_types
from headrace.errors import UsageError
from headrace.loader import LoaderOptions
from headrace.loader.endless import closed_error, refuse_dataloader_worker
from headrace.loader.feed import LoaderStatistics, MixtureFeed
from headrace.loader.options import LoaderFields, at_least, changed_options, option, with_options
from headrace.outputs.torch.device import (
    Ahead,
    Copying,
    CudaTarget,
    Decoded,
    Layout,
    Source,
    TorchBatch,
    checked_device,
    checked_layout,
    named_device,
    to_tensors,
)
from headrace.outputs.torch.jpeg import (
    Choice,
    JpegDecoder,
    device_decoder_missing,
    refuse_decoding,
)
from headrace.sampling.ranks import draws_after

Decode: TypeAlias = Literal["cpu", "gpu", "auto"]

_log = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOptions:
    """What a `TorchLoader` takes beside the options of a `Loader`."""

    layout: str = option(
        "BCTHW",
        "Axes of `frames`: BCTHW or BTHWC. On the CPU BCTHW is a permuted view with the strides of "
        "`torch.channels_last_3d`.",
    )
    device: str | int | torch.device | None = option(
        None,
        'None or "cpu": tensors are views of pooled memory on the CPU. "cuda": each batch is '
        "copied, one ahead, on a stream of its own; its tensors are contiguous and yours.",
    )
    pin: bool | None = option(
        None, "With a CUDA device: whether batches lie in pinned memory. None: they do."
    )
    decode: Decode = option(
        "cpu",
        'Who decodes JPEGs. "gpu": the device decodes and resizes them (nvJPEG), and the CPU the '
        'PNGs; pixels differ from the CPU\'s by a few levels at most. "auto": both in turns at '
        "first, then the one with which training is faster.",
    )
    steps_per_epoch: int | None = option(
        None, "Batches after which an iteration ends, and `len`. None: it does not end."
    )

    def __post_init__(self) -> None:
        check_types(self)
        checked_layout(self.layout)
        if self.steps_per_epoch is not None:
            at_least("steps_per_epoch", self.steps_per_epoch, 1)
        if self.device != "auto" and named_device(self.device) is None and self.pin:
            # A copy from pinned memory that the consumer starts may outlive the batch, and with it
            # the slot's lease: only our own copies are known to be complete.
            raise UsageError(
                "pin is for batches that the loader copies to a CUDA device itself",
                remedy="Give device='cuda', or leave pin out",
            )


@with_options(TorchOptions, LoaderOptions)
class TorchLoader(IterableDataset[TorchBatch]):
    """Endless batches of a mixture as dicts of tensors: a plain loop, Lightning or accelerate.

    `for batch in loader` does not end, and a second `for` continues where the first stopped; with
    `steps_per_epoch` an iteration ends after so many batches, and `len` is known. On the CPU
    tensors are views of pooled memory: release a batch before you take the next ones, or clone what
    you keep.

    >>> import headrace as hr
    >>> with hr.TorchLoader("oxe29.yaml", batch_size=64, image_size=256,  # doctest: +SKIP
    ...                     device="cuda") as loader:
    ...     for batch in loader:
    ...         loss = model(batch["frames"], batch["action"])  # uint8 [64, 3, 2, 256, 256]

    It has workers of its own. Where a trainer wants torch's `DataLoader`, give it one without:
    `DataLoader(loader, batch_size=None, num_workers=0)`.

    A state may be taken at any batch; after it was loaded, the first iteration is the rest of its
    epoch. Rank and world size are as given, else those of `torch.distributed`, else of torchrun's
    or Slurm's environment. They, and which device plain "cuda" is, are settled at the first batch:
    a loader may be made before the trainer sets up its processes, though not before it forks them.
    """

    def __init__(
        self,
        mixture: Mixture | str | Path,
        options: LoaderOptions | None = None,
        /,
        *,
        layout: str = "BCTHW",
        device: str | int | torch.device | None = None,
        pin: bool | None = None,
        decode: Decode = "cpu",
        steps_per_epoch: int | None = None,
        **changes: Unpack[LoaderFields],
    ) -> None:
        refuse_dataloader_worker()
        options = changed_options(LoaderOptions, options, changes, TorchOptions)
        TorchOptions(
            layout=layout, device=device, pin=pin, decode=decode, steps_per_epoch=steps_per_epoch
        )
        self.layout: Layout = checked_layout(layout)
        self.steps_per_epoch = steps_per_epoch
        where = checked_device(device)
        decoder = _decoder(decode, where, options.resize)
        self._target: CudaTarget | None = None
        if where is not None:
            self._target = CudaTarget(where, self.layout, pin=pin is not False, decoder=decoder)
        self._rank_given = options.rank is not None
        self._feed = MixtureFeed(
            mixture,
            options,
            lock=self._target.lock if self._target is not None and self._target.pin else None,
            encoded=decoder is not None,
        )
        if self._target is not None:
            self._target.refill = WeakMethod(self._feed.refill)
        self._choice: Choice | None = None
        if decoder is not None and decode == "auto":
            self._choice = Choice(self._feed.prefetch + 3)
            self._feed.keep_encoded = self._choice.who == "gpu"
        self._process = os.getpid()
        self._settled = False
        self._ahead: Ahead | Decoded | None = None
        self._begun = 0  # draws consumed before the first batch of `_ahead`
        self._handed = 0  # batches handed out since then
        self._last: float | None = None  # when the last batch was handed out
        self._step = 0  # batches of this epoch so far
        self._resumed = False  # the next iteration continues at that step
        #: Seconds that the consumer has waited for batches of training so far, copies included.
        self.waited_s = 0.0

    def __repr__(self) -> str:
        where = "cpu" if self._target is None else self._target.device
        return f"<TorchLoader {self.layout} on {where} of {self._feed!r}>"

    @property
    def options(self) -> LoaderOptions:
        """The options of the loader, with rank and world size as they are."""
        return replace(self._feed.options, rank=self._feed.rank, world_size=self._feed.world_size)

    @property
    def names(self) -> tuple[str, ...]:
        """The table of source names that `dataset` points into."""
        return self._feed.names

    @property
    def batch_size(self) -> int:
        """Samples a batch of this rank has."""
        return self._feed.options.batch_size

    # -- training ------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[TorchBatch]:
        # The first `next` begins the epoch: trainers call `iter` more often than they iterate.
        if not self._resumed:
            self._step = 0
        self._resumed = False
        while self.steps_per_epoch is None or self._step < self.steps_per_epoch:
            yield self._next()  # no name for it: the generator must not hold the batch

    def __len__(self) -> int:
        """Batches of an epoch. Like torch's DataLoader, a TypeError where there is no end."""
        if self.steps_per_epoch is None:
            raise TypeError(
                "a TorchLoader without steps_per_epoch has no length: its sequence has no end"
            )
        return self.steps_per_epoch

    def __bool__(self) -> bool:
        return True

    def state_dict(self) -> dict[str, Any]:
        """Where the consumer stands: plain values, the same on every rank."""
        state = self._feed.state_dict()
        if self._ahead is not None:  # some batches were taken and not handed out yet
            state["draws"] = draws_after(
                self._begun, self._handed, self.batch_size, self._feed.world_size
            )
        state["step"] = self._step % self.steps_per_epoch if self.steps_per_epoch else 0
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken, also one of `Loader`."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        self._feed.load_state_dict(state)
        step = int(state.get("step", 0))
        self._step = step % self.steps_per_epoch if self.steps_per_epoch else 0
        self._resumed = True

    def _next(self) -> TorchBatch:
        self._settle()
        started = perf_counter()
        if self._target is None:
            batch = to_tensors(next(self._feed), self.layout)
        else:
            if self._ahead is None:
                self._begun, self._handed = self._feed.state_dict()["draws"], 0
                self._ahead = self._ahead_of(self._feed)
            try:
                batch = next(self._ahead)
            except StopIteration:  # training has no end: it was closed meanwhile
                raise closed_error() from None
            self._handed += 1
        now = perf_counter()
        self.waited_s += now - started
        self._step += 1
        if isinstance(self._ahead, Decoded) and self._feed.on_batch is not None:
            self._feed.on_batch(self._ahead.about, now - started)
        if self._choice is not None:
            self._choose(now)
        return batch

    def _ahead_of(self, source: MixtureFeed) -> Ahead | Decoded:
        assert self._target is not None
        if self._target.decodes:
            return Decoded(WeakMethod(source.take), self._target.send)
        return Ahead(source, self._target.send)

    def _choose(self, now: float) -> None:
        """Let the faster of CPU and GPU decode, once both were tried."""
        assert self._choice is not None
        if self._last is not None:
            settled = self._choice.add(self.batch_size, now - self._last)
            self._feed.keep_encoded = self._choice.who == "gpu"
            if settled:
                _log.warning("%s", self._choice.explain())
                self._choice = None
        self._last = now

    # -- validation, figures, closing ----------------------------------------------------------

    def validation(self, limit_batches: int | None = None) -> ValidationLoader:
        """The validation splits, as a loader of which each iteration is one pass."""
        return ValidationLoader(self, limit_batches)

    def validation_length(self) -> int:
        """Samples of one validation pass, of all ranks together."""
        return self._feed.validation_length()

    def statistics(self) -> LoaderStatistics:
        """Frozen figures of everything so far."""
        return self._feed.statistics()

    def copying(self) -> Copying | None:
        """The cost of the copies to the device so far; None: the tensors stay on the CPU."""
        return None if self._target is None else self._target.copying

    def close(self) -> None:
        """End the threads and give the memory back."""
        if isinstance(self._ahead, Ahead):
            self._ahead.close()
        self._feed.close()
        if isinstance(self._ahead, Decoded):
            self._ahead.close()  # after the loader: its thread may wait for a batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a TorchLoader cannot be pickled or copied: it has threads and open files",
            remedy="Make it in the process that uses it (with torch's DataLoader, "
            "use num_workers=0)",
        )

    def _settle(self) -> None:
        """Check the process before each batch; before the first one, find rank and device."""
        _check_process(self._process)
        self._feed.check_open()
        if self._settled:
            return
        found = None if self._rank_given else _distributed_rank()
        if found is not None:
            self._feed.place(*found)
        if self._target is not None:
            self._target.settle()
        self._settled = True

    def _validation_pass(self, limit_batches: int | None) -> Iterator[TorchBatch]:
        self._settle()
        self._last = None  # the time of validation must not count in the choice of the decoder
        if isinstance(self._ahead, Decoded) and self._feed.validation_rewinds:
            self.load_state_dict(self.state_dict())  # no thread may take batches meanwhile
        batches = self._feed.validation(limit_batches)
        if self._target is not None and self._target.decodes:
            return Decoded(lambda: partial(next, batches), self._target.send)
        if self._target is not None:
            return Ahead(cast(Source, batches), self._target.send)
        return map(partial(to_tensors, layout=self.layout), batches)


class ValidationLoader(IterableDataset[TorchBatch]):
    """The validation splits; each iteration is one pass, in the same order. Made by `validation`.

    Ranks share each pass. If its samples do not divide evenly, the last ranks have one batch less,
    or a shorter one: where all must step together, give a `limit_batches` that every rank reaches.
    """

    def __init__(self, loader: TorchLoader, limit_batches: int | None) -> None:
        self._loader = loader
        self._limit = limit_batches

    def __repr__(self) -> str:
        return f"<ValidationLoader, limit {self._limit}, of {self._loader!r}>"

    @property
    def batch_size(self) -> int:
        """Samples a batch of this rank has, but for the last one."""
        return self._loader.batch_size

    def __iter__(self) -> Iterator[TorchBatch]:
        # A generator, so that nothing is read before the first `next`.
        yield from self._loader._validation_pass(self._limit)

    def __len__(self) -> int:
        """Batches of a pass on this rank."""
        if not self._loader._settled:  # a trainer also asks when all is closed
            self._loader._settle()
        feed, size = self._loader._feed, self.batch_size
        left = feed.validation_length() - feed.rank * size
        batches = max(0, -(-left // (size * feed.world_size)))
        return batches if self._limit is None else min(batches, self._limit)


def _decoder(decode: Decode, device: torch.device | None, filter: str) -> JpegDecoder | None:
    """The decoder of JPEGs on the device, if one was requested."""
    if decode == "cpu":
        return None
    missing = device_decoder_missing(device, filter)
    if missing is None:
        return JpegDecoder(filter)
    if decode == "gpu":
        raise refuse_decoding(missing)
    _log.warning("decode: the CPU decodes (%s)", missing)
    return None


def _distributed_rank() -> tuple[int, int] | None:
    """Rank and world size of `torch.distributed`; None if it is not initialised."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _check_process(owner: int) -> None:
    """Raise unless this is the process `owner` and not a worker of a torch DataLoader."""
    refuse_dataloader_worker()
    if os.getpid() != owner:
        raise UsageError(
            f"the TorchLoader was made in process {owner}, and this is {os.getpid()}",
            remedy="Make it after the fork: its threads do not follow into a child",
        )
