"""JPEGs of a batch decoded by a CUDA device (nvJPEG), and resized there.

Two libraries give us nvJPEG. Differences from the CPU's pixels in 100 frames of the synthetic
mixture, in levels of 255 (mean of all, percentile of the worst frame, most of all):

| library       | mean | 99th percentile | most | JPEGs/s of an H200 |
|---------------|------|-----------------|------|--------------------|
| nvImageCodec  | 1.0  | 3               | 9    | 16,000             |
| torchvision   | 1.2  | 14              | 66   | 24,000             |

Both compute the cosine transform more exactly than TensorFlow does, hence the mean. torchvision
repeats each chroma value of subsampled JPEGs where nvImageCodec, as TensorFlow, interpolates: seen
at coloured edges. nvImageCodec is taken where it is installed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from headrace.errors import UsageError

__all__ = ["JpegDecoder", "device_decoder_missing", "refuse_decoding", "resize"]

_cuda: Any = torch.cuda  # much of it has no types

#: JPEGs to pixels [h, w, 3] on a device; a RuntimeError if one of them is refused.
Decode: TypeAlias = Callable[[list[Tensor], torch.device], list[Tensor]]
_TO_PLANES = (0, 3, 1, 2)

#: How torch calls the filters that it has as TensorFlow has them. Its "area" is another one.
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
    """The error for whoever asked for it."""
    return UsageError(
        f"decode is 'gpu', but {why}",
        remedy="Give device='cuda' and install nvidia-nvimgcodec-cu13 (or -cu12) or torchvision, "
        "or use decode='cpu' ('auto' takes the CPU where nothing else is there)",
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

        Where `lengths` [B, T] is not 0, so many bytes of a JPEG lie in the place of the pixels. A
        RuntimeError if a JPEG is refused.
        """
        count, (height, width) = lengths.size, frames.shape[2:4]
        flat, each = frames.reshape(count, -1), lengths.reshape(-1)
        if each.all():
            out = torch.empty((count, 3, height, width), dtype=torch.uint8, device=device)
        else:  # all at once: a copy for each would take longer than what is copied in vain
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
    except (ImportError, OSError, RuntimeError):  # not there, or of another CUDA
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
