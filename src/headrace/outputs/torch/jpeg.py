"""JPEGs of a batch decoded by a CUDA device (nvJPEG), and resized there.

Two libraries give us nvJPEG. Differences from the CPU's pixels in 100 frames of the synthetic
mixture, in levels of 255 (mean of all, percentile of the worst frame, most of all):

| library       | mean | 99th percentile | most | JPEGs/s of an H200 |
|---------------|------|-----------------|------|--------------------|
| nvImageCodec  | 1.0  | 3               | 9    | 16,000             |
| torchvision   | 1.2  | 14              | 66   | 24,000             |

Both compute the cosine transform more exactly than TensorFlow does, hence the mean. torchvision
repeats each chroma value of subsampled JPEGs where nvImageCodec, like TensorFlow, interpolates:
visible at coloured edges. nvImageCodec is preferred where it is installed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from headrace.errors import UsageError

_cuda: Any = torch.cuda  # much of it has no types

#: JPEGs to pixels [h, w, 3] on a device; a RuntimeError if one of them is refused.
Decode: TypeAlias = Callable[[list[Tensor], torch.device], list[Tensor]]
_TO_PLANES = (0, 3, 1, 2)

#: Torch's names of the filters that equal TensorFlow's. Its "area" is a different filter.
_MODES = {"bilinear": "bilinear", "nearest": "nearest-exact"}


def device_decoder_missing(device: torch.device | None, filter: str) -> str | None:
    """Why JPEGs cannot be decoded on a device; None if they can."""
    if device is None:
        return "there is no CUDA device to decode on"
    if filter not in _MODES:
        return f"a GPU has no filter that resizes as {filter!r} does"
    if not any(map(_has, _LIBRARIES)):
        return "neither nvImageCodec nor torchvision, which decode JPEGs on a GPU, can be imported"
    return None


def refuse_decoding(why: str) -> UsageError:
    return UsageError(
        f"decode is 'gpu', but {why}",
        remedy="Give device='cuda' and install nvidia-nvimgcodec-cu13 (or -cu12) or torchvision, "
        "or use decode='cpu' ('auto' uses the CPU where the GPU cannot decode)",
    )


class JpegDecoder:
    """Decodes the JPEGs of batches on the current stream, and returns when that is done."""

    def __init__(self, filter: str, library: str | None = None) -> None:
        self.library = library or next(name for name in _LIBRARIES if _has(name))
        self._decode = _LIBRARIES[self.library]()
        self._filter = filter

    def __repr__(self) -> str:
        return f"<JpegDecoder by {self.library}>"

    def __call__(self, frames: Tensor, lengths: NDArray[np.int32], device: torch.device) -> Tensor:
        """Frames [B, T, H, W, 3] of the host as pixels [B, T, 3, H, W] on a device.

        Where `lengths` [B, T] is not 0, the place of the pixels holds that many bytes of a JPEG. A
        RuntimeError if a JPEG is refused.
        """
        count, (height, width) = lengths.size, frames.shape[2:4]
        flat, each = frames.reshape(count, -1), lengths.reshape(-1)
        if each.all():
            out = torch.empty((count, 3, height, width), dtype=torch.uint8, device=device)
        else:  # one copy of everything: copying each frame would take longer than the waste
            out = frames.reshape(count, height, width, 3).to(device, non_blocking=True)
            out = out.permute(_TO_PLANES).contiguous()
        kept = np.flatnonzero(each).tolist()
        images = self._decode([flat[i, : each[i]] for i in kept], device) if kept else []
        for rows, group in _by_size(kept, images):
            pixels = torch.stack(group).permute(_TO_PLANES)
            to = torch.tensor(rows).pin_memory().to(device, non_blocking=True)
            out.index_copy_(0, to, resize(pixels, (height, width), self._filter))
        done = _cuda.Event(blocking=True)  # images and the host's memory must live until then
        done.record()
        done.synchronize()
        return out.view(*lengths.shape, 3, height, width)


def resize(images: Tensor, size: tuple[int, int], filter: str) -> Tensor:
    """uint8 [N, 3, h, w] to [N, 3, H, W]: half-pixel centres, no antialias, rounded."""
    if images.shape[2:] == size:
        return images
    if filter == "nearest":
        return interpolate(images, size, mode=_MODES[filter])
    resized = interpolate(images.float(), size, mode=_MODES[filter], align_corners=False)
    return resized.round_().to(torch.uint8)  # weights are positive and sum to one: no overflow


def _by_size(rows: list[int], images: list[Tensor]) -> list[tuple[list[int], list[Tensor]]]:
    """Images of equal size together, with their rows."""
    groups: defaultdict[torch.Size, tuple[list[int], list[Tensor]]] = defaultdict(lambda: ([], []))
    for row, image in zip(rows, images, strict=True):
        places, group = groups[image.shape]
        places.append(row)
        group.append(image)
    return list(groups.values())


def _has(library: str) -> bool:
    try:
        import_module(library)
    except (ImportError, OSError, RuntimeError):  # not installed, or built for another CUDA
        return False
    return True


def _nvimgcodec() -> Decode:
    nvimgcodec = import_module("nvidia.nvimgcodec")
    decoders: dict[int, Any] = {}

    def decode(images: list[Tensor], device: torch.device) -> list[Tensor]:
        number = device.index or 0
        if number not in decoders:
            decoders[number] = nvimgcodec.Decoder(
                device_id=number, max_num_cpu_threads=1, options=":fancy_upsampling=1"
            )
        stream = torch.cuda.current_stream(device).cuda_stream
        found = decoders[number].decode([image.numpy() for image in images], cuda_stream=stream)
        if any(image is None for image in found):
            raise RuntimeError("nvImageCodec refused a JPEG")
        return [torch.as_tensor(image, device=device) for image in found]

    return decode


def _torchvision() -> Decode:
    io = import_module("torchvision.io")

    def decode(images: list[Tensor], device: torch.device) -> list[Tensor]:
        found = io.decode_jpeg(images, mode=io.ImageReadMode.RGB, device=device)
        return [image.permute(1, 2, 0) for image in found]

    return decode


_LIBRARIES: dict[str, Callable[[], Decode]] = {
    "nvidia.nvimgcodec": _nvimgcodec,
    "torchvision": _torchvision,
}


Who: TypeAlias = Literal["cpu", "gpu"]

#: The first turns of each are not counted: the step is still warming up.
_TURNS: tuple[Who, ...] = ("cpu", "gpu", "cpu", "gpu", "cpu", "gpu")
_COUNTED = 2  #: last turns of each that count
_SECONDS, _BATCHES = 0.5, 6  #: least length of a turn
_CLEARLY = 1.03  #: least gain by the GPU: decoding takes memory and time from the model


@dataclass
class Choice:
    """Whether the CPU or the GPU decodes: tried in turns while training runs, then settled.

    What counts is how fast training proceeds, whatever limits it: where the step takes longer than
    the CPUs need to decode, a GPU that also decodes only slows the step down. Batches that were
    begun before a turn do not count towards it.
    """

    ahead: int  #: batches that may have been begun before one is handed out
    settled: bool = False
    rates: dict[Who, float] = field(default_factory=dict)  #: samples/s of each, once settled
    _turn: int = 0
    _passed: int = 0
    _batches: int = 0
    _samples: int = 0
    _seconds: float = 0.0
    _seen: list[tuple[Who, int, float]] = field(default_factory=list)

    @property
    def who(self) -> Who:
        """Who is to decode now."""
        if not self.settled:
            return _TURNS[self._turn]
        return "gpu" if self.rates["gpu"] > _CLEARLY * self.rates["cpu"] else "cpu"

    def add(self, samples: int, seconds: float) -> bool:
        """Count a batch and the seconds since the one before; returns whether that settled it."""
        if self.settled:
            return False
        self._passed += 1
        if self._passed <= self.ahead:
            return False
        self._batches += 1
        self._samples += samples
        self._seconds += seconds
        if self._batches < _BATCHES or self._seconds < _SECONDS:
            return False
        self._seen.append((self.who, self._samples, self._seconds))
        self._turn += 1
        self._passed = self._batches = self._samples = 0
        self._seconds = 0.0
        if self._turn < len(_TURNS):
            return False
        for who in ("cpu", "gpu"):
            mine = [(samples, s) for w, samples, s in self._seen if w == who][-_COUNTED:]
            self.rates[who] = sum(n for n, _ in mine) / sum(s for _, s in mine)
        self.settled = True
        return True

    def explain(self) -> str:
        """What was chosen and why."""
        other: Who = "cpu" if self.who == "gpu" else "gpu"
        names = {"cpu": "the CPU", "gpu": "the GPU"}
        return (
            f"decode: {names[self.who]} decodes from here on ({self.rates[self.who]:,.0f} "
            f"samples/s, {self.rates[other]:,.0f} with {names[other]})"
        )
