"""Batches as tensors, and their copies to a CUDA device, one ahead of the consumer.

Copies are asynchronous, so the batch on the host, and with it its slot, is held until its copy is
complete. The next copy is queued when a batch is handed out, but only if the host has that batch
ready: the first batch never waits for the second.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, NotRequired, Protocol, TypeAlias, TypedDict, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.engine.feeders import Feeders
from headrace.errors import UsageError
from headrace.loader import Batch
from headrace.loader.batch import EncodedBatch
from headrace.outputs.torch.jpeg import JpegDecoder

_cuda: Any = torch.cuda  # much of it has no types

Layout: TypeAlias = Literal["BCTHW", "BTHWC"]

_ARRAYS = (
    "draws",
    "dataset",
    "episode_id",
    "frame_idx",
    "offset",
    "action",
    "action_is_pad",
    "state",
)


class TorchBatch(TypedDict):
    """A batch of windows. What the metadata mode leaves out has no key.

    On the CPU all tensors but `draws` are views of pooled memory, which is reused once the last of
    them is released: keep no reference to them, or clone what you keep.
    """

    frames: Tensor  #: uint8 [B, 3, T, H, W] or [B, T, H, W, 3]
    names: tuple[str, ...]  #: table of source names
    draws: Tensor  #: int64 [B] numbers of the draws
    dataset: NotRequired[Tensor]  #: int32 [B] index into `names`
    episode_id: NotRequired[Tensor]  #: int64 [B] shard number << 32 | record number
    frame_idx: NotRequired[Tensor]  #: int32 [B] start t
    offset: NotRequired[Tensor]  #: int32 [B] steps to the last frame
    action: NotRequired[Tensor]  #: float32 [B, A] at t, or as asked for (`LoaderOptions`)
    action_is_pad: NotRequired[Tensor]  #: bool [B, C] beyond the episode's end
    state: NotRequired[Tensor]  #: float32 [B, S] at t
    language: NotRequired[list[str]]  #: [B] instruction at t
    robot: NotRequired[list[str]]  #: [B] where a source names it, else ""


def to_tensors(batch: Batch, layout: Layout) -> TorchBatch:
    """The batch as tensors on the CPU, without a copy.

    Each tensor keeps the lease on the memory. BCTHW is a permuted view: its strides are those of
    `torch.channels_last_3d`, and `.contiguous()` would copy.
    """
    values: dict[str, Any] = {"frames": in_layout(torch.from_numpy(batch.frames), layout)}
    for name in _ARRAYS:
        array = getattr(batch, name)
        if array is not None:
            values[name] = torch.from_numpy(array)
    if batch.language is not None:
        values["language"] = batch.language
    if batch.robot is not None:
        values["robot"] = batch.robot
    values["names"] = batch.names
    return cast(TorchBatch, values)


def in_layout(frames: Tensor, layout: Layout) -> Tensor:
    """Frames [B, T, H, W, C] seen in a layout, without a copy."""
    return frames.permute(0, 4, 1, 2, 3) if layout == "BCTHW" else frames


def checked_layout(layout: str) -> Layout:
    """A layout as the user wrote it, in any case."""
    if not isinstance(layout, str) or layout.upper() not in get_args(Layout):
        raise UsageError(f"layout is {layout!r}", remedy="Give BCTHW or BTHWC")
    return cast(Layout, layout.upper())


# -- one ahead of the consumer ------------------------------------------------------------------


class Source(Protocol):
    """Batches on the host: a loader, or a validation pass."""

    @property
    def ready(self) -> int:
        """Batches that `next` would return without waiting."""

    def __next__(self) -> Batch: ...


class Ahead(Iterator[TorchBatch]):
    """Hands out the batches of a source, each sent to the device before it is requested."""

    def __init__(self, source: Source, send: Callable[[Batch], CudaSent]) -> None:
        self._source = source
        self._send = send
        self._taken: Batch | None = None  # from the source, and not sent yet
        self._next: CudaSent | None = None
        self._copying: list[tuple[CudaSent, Batch]] = []  # one at most
        # Memory must not be reused during a copy, not even when this object is dropped.
        self._finalizer = weakref.finalize(self, _finish, self._copying)

    @property
    def ahead(self) -> int:
        """Batches taken from the source that the consumer has not received yet."""
        return (self._taken is not None) + (self._next is not None)

    def __next__(self) -> TorchBatch:
        if self._copying and self._copying[0][0].done():
            self._copying.clear()
        sent = self._next or self._order()
        self._next = None
        # An error of the next batch belongs to the next call, which tries it again.
        with contextlib.suppress(Exception):
            if self._source.ready:
                self._next = self._order()
        return sent.take()

    def close(self) -> None:
        """Drop the batch ahead, and return when no copy is running."""
        self._taken = self._next = None
        _finish(self._copying)

    def _order(self) -> CudaSent:
        # One copy at a time: its slot is returned before we wait for a batch that may need it.
        _finish(self._copying)
        if self._taken is None:
            self._taken = next(self._source)
        sent = self._send(self._taken)
        self._copying.append((sent, self._taken))
        self._taken = None
        return sent


def _finish(copying: list[tuple[CudaSent, Batch]]) -> None:
    while copying:
        copying[0][0].wait()
        copying.pop()


_FOREVER = 3600.0


class Decoded(Iterator[TorchBatch]):
    """Takes batches, has them decoded by a device, and hands them out in order.

    Submitting the decoding of a batch blocks a thread as long as the device takes for it, so it has
    a thread of its own: one batch waits ready while the next is decoded. `source()` returns the
    function that takes a batch, or None once its owner no longer exists: the thread must not keep
    alive what the consumer has dropped.
    """

    about: Batch  #: what was handed out last, without its frames

    def __init__(
        self, source: Callable[[], Callable[[], Batch] | None], send: Callable[[Batch], CudaSent]
    ) -> None:
        self._feeders = Feeders([_sent(source, send)], depth=1, name="headrace-device")
        self._finalizer = weakref.finalize(self, self._feeders.close, 0.0)

    def __next__(self) -> TorchBatch:
        sent, self.about = self._feeders.take(0)
        return sent.take()

    def close(self) -> None:
        """Drop what is ahead; returns when no batch is being taken or decoded."""
        self._feeders.close(_FOREVER)


def _sent(
    source: Callable[[], Callable[[], Batch] | None], send: Callable[[Batch], CudaSent]
) -> Iterator[tuple[CudaSent, Batch]]:
    """Batches whose copy and decoding are complete, so that their slots are free again."""
    while (take := source()) is not None:
        try:
            batch = take()
        except StopIteration:
            return
        del take
        sent = send(batch)
        about = batch.about()
        sent.wait(held_up=False)
        del batch
        yield sent, about
        del sent, about


# -- CUDA ---------------------------------------------------------------------------------------


def named_device(device: str | int | torch.device | None) -> torch.device | None:
    """The CUDA device that is meant, whether it is there or not; None: the CPU."""
    if device is None:
        return None
    try:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise UsageError(
            f"device is {str(device)!r}",
            remedy="Give cuda, or leave device out and move the tensors yourself",
        )
    return found if found.type == "cuda" else None


def checked_device(device: str | int | torch.device | None) -> torch.device | None:
    """As `named_device`; one that is not there is an error."""
    found = named_device(device)
    if found is None:
        return None
    if not torch.cuda.is_available():
        raise UsageError(
            f"device is {str(found)!r}, but torch finds no CUDA device",
            remedy="Leave device out, or install a driver and a torch with CUDA",
        )
    if found.index is not None and found.index >= torch.cuda.device_count():
        raise UsageError(
            f"device is {str(found)!r}, but there are {torch.cuda.device_count()} CUDA devices",
            remedy="Give cuda, which is the device of torch.cuda.set_device",
        )
    return found


@dataclass(frozen=True, slots=True)
class Copying:
    """The cost of the copies to a device so far."""

    copies: int  #: batches copied
    seconds: float  #: that the device took for them
    waited_s: float  #: that the consumer waited for one to be complete


class CudaTarget:
    """A device, the stream that copies to it, and pinned memory to copy from."""

    def __init__(
        self,
        device: torch.device,
        layout: Layout,
        *,
        pin: bool,
        decoder: JpegDecoder | None = None,
    ) -> None:
        self.device = device
        self._decoder = decoder  # of batches that hold JPEGs
        #: Returns the function that decodes what the device cannot; None once it does not exist.
        self.refill: Callable[[], Callable[[EncodedBatch, list[int]], None] | None] = lambda: None
        self.pin = pin
        self._layout = layout
        self._stream: Any = None
        self.copying = Copying(0, 0.0, 0.0)

    @property
    def decodes(self) -> bool:
        """Whether batches may hold JPEGs."""
        return self._decoder is not None

    def settle(self) -> None:
        """Fix which device plain "cuda" is: the trainer has chosen the current one by now."""
        if self._stream is None:
            self.device = torch.empty(0, device=self.device).device
            self._stream = _cuda.Stream(self.device)

    def lock(self, memory: NDArray[np.uint8]) -> Callable[[], None]:
        """Pin a slot's memory. Called by a thread of the engine, which has no current device."""
        with torch.cuda.device(self.device):
            return _pin(memory)

    def send(self, batch: Batch) -> CudaSent:
        """Queue the copy of a batch, as uint8 or JPEGs; the layout is made on the device."""
        if isinstance(batch, EncodedBatch) and batch.encoded.any():
            return self._send_encoded(batch)
        host: dict[str, Any] = dict(to_tensors(batch, "BTHWC"))
        if self.pin:
            host["draws"] = host["draws"].pin_memory()  # the one array that is not in the slot
        with torch.cuda.stream(self._stream):
            begun = _event(self._stream, timed=True)
            there = self._there(host)
            copied = _event(self._stream, timed=True)
            there["frames"] = in_layout(there["frames"], self._layout).contiguous()
            complete = _event(self._stream)
        return CudaSent(self, there, (begun, copied), complete)

    def _send_encoded(self, batch: EncodedBatch) -> CudaSent:
        """Decode a batch on the device; blocks the calling thread until that is done."""
        assert self._decoder is not None
        try:
            frames = self._decoded(batch)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            bad, refill = self._refused(batch), self.refill()
            if not bad or refill is None:
                raise
            refill(batch, bad)  # raises their error, or replaces them
            return self.send(batch)
        host: dict[str, Any] = dict(to_tensors(batch, "BTHWC"))
        del host["frames"]
        order = (0, 2, 1, 3, 4) if self._layout == "BCTHW" else (0, 1, 3, 4, 2)
        with torch.cuda.stream(self._stream):
            begun = _event(self._stream, timed=True)
            there = self._there(host)
            there["frames"] = frames.permute(order).contiguous()
            complete = _event(self._stream, timed=True)
        return CudaSent(self, there, (begun, complete), complete)

    def _decoded(self, batch: EncodedBatch, rows: slice = slice(None)) -> Tensor:
        assert self._decoder is not None
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            frames = torch.from_numpy(batch.frames[rows])
            return self._decoder(frames, batch.encoded[rows], self.device)

    def _refused(self, batch: EncodedBatch) -> list[int]:
        """Rows with a JPEG that the device cannot decode, tried one by one."""
        bad = []
        for row in range(len(batch)):
            try:
                self._decoded(batch, slice(row, row + 1))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                bad.append(row)
        return bad

    def _there(self, host: dict[str, Any]) -> dict[str, Any]:
        """Tensors with their copies queued, the rest as it is."""
        return {
            name: value.to(self.device, non_blocking=True) if isinstance(value, Tensor) else value
            for name, value in host.items()
        }

    def count(self, seconds: float, waited: float) -> None:
        so_far = self.copying
        self.copying = Copying(
            so_far.copies + 1, so_far.seconds + seconds, so_far.waited_s + waited
        )


class CudaSent:
    """A batch whose copy to a device is queued."""

    def __init__(
        self, target: CudaTarget, batch: dict[str, Any], copy: tuple[Any, Any], complete: Any
    ) -> None:
        self._target, self._batch = target, batch
        self._begun, self._copied = copy  # events; after the second the host's memory may change
        self._complete = complete  # an event: the layout is made, too
        self._counted = False

    def done(self) -> bool:
        """Whether the copy is complete, so that the host's memory may change."""
        over = bool(self._copied.query())
        if over:
            self._count(0.0)
        return over

    def wait(self, *, held_up: bool = True) -> None:
        """Return when it is complete; `held_up`: whether the consumer waits for that."""
        started = perf_counter()
        self._copied.synchronize()
        self._count(perf_counter() - started if held_up else 0.0)

    def _count(self, waited: float) -> None:
        if not self._counted:
            self._counted = True
            self._target.count(self._begun.elapsed_time(self._copied) / 1000, waited)

    def take(self) -> TorchBatch:
        """The batch; the consumer's stream waits for the copy, the consumer does not."""
        current = torch.cuda.current_stream(self._target.device)
        current.wait_event(self._complete)
        batch, self._batch = self._batch, {}
        for value in batch.values():
            if isinstance(value, Tensor):  # allocated on our stream, and used on this one
                value.record_stream(current)
        return cast(TorchBatch, batch)


def _event(stream: Any, *, timed: bool = False) -> Any:
    """An event after everything that is queued on a stream so far."""
    event = _cuda.Event(enable_timing=timed, blocking=True)  # waiting takes no CPU
    event.record(stream)
    return event


def _pin(memory: NDArray[np.uint8]) -> Callable[[], None]:
    """Page-lock memory that begins at a page boundary; returns the function that undoes it.

    Not torch's own pinned memory (`pin_memory=True`): that is rounded up to a power of two and
    never freed, so a slot of 24.1 MiB would take 32 unknown to the budget; and worker processes
    could not write to it.
    """
    cudart = _cuda.cudart()
    address, size = memory.ctypes.data, memory.nbytes
    error = cudart.cudaHostRegister(address, size, 1)  # 1: for all devices
    if error != cudart.cudaError.success:
        raise UsageError(
            f"CUDA could not pin {size:,} bytes of memory (error {error})",
            remedy="Raise the limit of locked memory (ulimit -l), or give pin=False",
        )

    def unpin() -> None:
        if not sys.is_finalizing():  # the driver may be unloaded; exiting frees the memory
            cudart.cudaHostUnregister(address)

    return unpin
