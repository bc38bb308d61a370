"""Frozen models that training learns from: DINO for features, RAFT for optical flow.

Weights come from local files only; nothing is ever downloaded. A file is a state dict of the
published model (DINOv3 ViT-S/16; RAFT large or small of torchvision) or a TorchScript module that
does the same: features [F, 384, h, w] of images [F, 3, H, W] in [0, 1], or flow [B, 2, H, W] in
pixels from two such images in [-1, 1].
"""

from __future__ import annotations

import warnings
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from headrace.errors import UsageError
from headrace.recipes.laq.config import LaqConfig
from headrace.recipes.laq.dinov3 import DinoV3

__all__ = ["Teachers", "load_dino", "load_raft", "load_teachers"]


@dataclass(slots=True)
class Teachers:
    """The teachers there are. No part of the model: neither trained nor in its checkpoints."""

    dino: nn.Module | None = None
    raft: nn.Module | None = None

    def check(self, config: LaqConfig) -> None:
        """Refuse a config that asks for a teacher that is not here."""
        if config.features == "dino" and self.dino is None:
            raise UsageError(
                "features is 'dino' but there is no DINO teacher",
                remedy="Use Laq.build with dino_weights, or features='pixel'",
            )
        if config.flow_decoder and self.raft is None:
            raise UsageError(
                "flow_decoder is on but there is no flow teacher",
                remedy="Use Laq.build with flow_weights, or flow_decoder=False",
            )

    @torch.no_grad()
    def features(self, frames: Tensor) -> Tensor:
        """DINO features [B, T, 384, h, w] of frames [B, 3, T, H, W] in [0, 1]."""
        assert self.dino is not None
        images = frames.transpose(1, 2).flatten(0, 1)  # [B*T, 3, H, W]
        features: Tensor = self.dino.to(frames.device)(images)
        return features.reshape(len(frames), -1, *features.shape[1:])

    @torch.no_grad()
    def flow(self, frames: Tensor) -> Tensor:
        """Optical flow [B, 2, H, W] in pixels from the first frame to the last."""
        assert self.raft is not None
        first, last = (frames[:, :, i].contiguous() * 2 - 1 for i in (0, -1))
        with torch.autocast(frames.device.type, enabled=False):
            flow = self.raft.to(frames.device)(first, last)
        # RAFT gives a flow for each of its iterations; the last is the best.
        return cast(Tensor, flow[-1] if isinstance(flow, (list, tuple)) else flow)


def load_teachers(config: LaqConfig) -> tuple[LaqConfig, Teachers]:
    """The teachers that the config asks for, and the config without those there are not.

    A teacher without a file is a warning that names it, or an error if `teachers_required`.
    """
    dino = raft = None
    if config.features == "dino":
        if _at_hand(config, "dino_weights", "features of projected pixels"):
            dino = load_dino(cast(str, config.dino_weights))
        else:
            config = replace(config, features="pixel")
    if config.flow_decoder:
        if _at_hand(config, "flow_weights", "no flow decoder"):
            raft = load_raft(cast(str, config.flow_weights))
        else:
            config = replace(config, flow_decoder=False)
    return config, Teachers(dino, raft)


def load_dino(path: str | Path) -> nn.Module:
    """DINOv3 ViT-S/16 from a file."""
    loaded = _load(path)
    if isinstance(loaded, nn.Module):
        return loaded
    model = DinoV3()
    try:
        model.load_published(loaded)
    except (KeyError, RuntimeError) as error:
        raise UsageError(
            f"{path} does not hold the weights of DINOv3 ViT-S/16: {error}",
            remedy="Give the published state dict or a TorchScript module",
        ) from error
    return model.eval()


def load_raft(path: str | Path) -> nn.Module:
    """RAFT from a file; a state dict needs torchvision, a TorchScript module does not."""
    loaded = _load(path)
    if isinstance(loaded, nn.Module):
        return loaded
    try:
        from torchvision.models import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
            optical_flow,
        )
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{path} holds a state dict, and the model of it comes from torchvision, "
            "which is not installed",
            remedy="pip install torchvision, or give a TorchScript module",
        ) from error
    small = "update_block.recurrent_block.convgru.convz.weight" in loaded
    make = optical_flow.raft_small if small else optical_flow.raft_large
    model: nn.Module = make(weights=None)
    try:
        model.load_state_dict(loaded)
    except RuntimeError as error:
        raise UsageError(
            f"{path} does not hold the weights of torchvision's RAFT: {error}",
            remedy="Give raft_large or raft_small, or a TorchScript module",
        ) from error
    return model.eval().requires_grad_(False)


def _at_hand(config: LaqConfig, key: str, instead: str) -> bool:
    path: str | None = getattr(config, key)
    if path is not None and Path(path).is_file():
        return True
    problem = f"{key} is not set" if path is None else f"{key}: there is no file {path}"
    if config.teachers_required:
        raise UsageError(problem, remedy="Give a local file; nothing is downloaded")
    warnings.warn(f"{problem}: training with {instead}", stacklevel=3)
    return False


def _load(path: str | Path) -> Any:
    """A TorchScript module, or the state dict in the file."""
    with zipfile.ZipFile(path) if zipfile.is_zipfile(path) else open(path, "rb") as file:
        names = file.namelist() if isinstance(file, zipfile.ZipFile) else []
    if any(name.endswith("constants.pkl") for name in names):
        module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
        return cast(nn.Module, module).eval()
    return torch.load(path, map_location="cpu", weights_only=True)
