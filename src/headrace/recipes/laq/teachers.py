"""Frozen models that training learns from: DINO for features, RAFT for optical flow.

Weights come from local files only; nothing is ever downloaded. A file is a state dict of the
published model (DINOv3 ViT-S/16; RAFT large or small of torchvision) or a TorchScript module that
does the same: features [F, 384, h, w] of images [F, 3, H, W] in [0, 1], or flow [B, 2, H, W] in
pixels from two such images in [-1, 1].
"""

from __future__ import annotations

import math
import warnings
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.errors import UsageError
from headrace.recipes.laq.config import LaqConfig


@dataclass(slots=True)
class Teachers:
    """The loaded teachers. Not part of the model: neither trained nor saved in its checkpoints."""

    dino: nn.Module | None = None
    raft: nn.Module | None = None

    def __deepcopy__(self, _: Any) -> Teachers:
        """Copies of a model, as an average of its weights needs, share the frozen teachers."""
        return self

    def check(self, config: LaqConfig) -> None:
        """Refuse a config that needs a teacher that is not loaded."""
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
    """The teachers that the config asks for, and the config without those that are missing.

    A teacher without a file is a warning that names it, or an error if `teachers_required`.
    """
    dino = raft = None
    if config.features == "dino":
        if _available(config, "dino_weights", "features of projected pixels"):
            dino = load_dino(cast(str, config.dino_weights))
        else:
            config = replace(config, features="pixel")
    if config.flow_decoder:
        if _available(config, "flow_weights", "no flow decoder"):
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
            f"{path} holds a state dict, which needs torchvision, and that is not installed",
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


def _available(config: LaqConfig, key: str, instead: str) -> bool:
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


# -- DINOv3 ViT-S/16, inference only: names and shapes are those of the published state dict -----

_PATCH, _WIDTH, _DEPTH, _HEADS, _REGISTERS = 16, 384, 12, 6, 4
_EPS = 1e-5
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
_BASE = 100.0  # base of the periods of the rotary embedding


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.proj = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)  # [B, heads, 1 + registers + patches, 64]
        seen = functional.scaled_dot_product_attention(
            _rotated(q, rotation), _rotated(k, rotation), v
        )
        out: Tensor = self.proj(seen.transpose(1, 2).flatten(2))
        return out


class _Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(_WIDTH, 4 * _WIDTH)
        self.fc2 = nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(functional.gelu(self.fc1(x)))
        return out


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(_WIDTH))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(_WIDTH, eps=_EPS)
        self.attn = _Attention()
        self.ls1 = _Scale()
        self.norm2 = nn.LayerNorm(_WIDTH, eps=_EPS)
        self.mlp = _Mlp()
        self.ls2 = _Scale()

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.ls1.gamma * self.attn(self.norm1(x), rotation)
        out: Tensor = x + self.ls2.gamma * self.mlp(self.norm2(x))
        return out


class DinoV3(nn.Module):
    """Images to patch features. Load its weights with `load_published`."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, _WIDTH, _PATCH, _PATCH)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.storage_tokens = nn.Parameter(torch.zeros(1, _REGISTERS, _WIDTH))
        self.blocks = nn.ModuleList(_Block() for _ in range(_DEPTH))
        self.norm = nn.LayerNorm(_WIDTH, eps=_EPS)
        self.periods: Tensor
        quarter = _WIDTH // _HEADS // 4
        periods = _BASE ** (torch.arange(quarter) / quarter)  # 16 angles a coordinate
        self.register_buffer("periods", periods)
        self.requires_grad_(False)

    def load_published(self, state: dict[str, Tensor]) -> None:
        """Load the published weights; a RuntimeError of torch names those that are missing."""
        state = dict(state)
        if "rope_embed.periods" in state:
            state["periods"] = state.pop("rope_embed.periods")
        state.setdefault("periods", self.periods)
        state.pop("mask_token", None)  # replaces masked patches in training
        for name in [name for name in state if name.endswith("attn.qkv.bias_mask")]:
            # Keys have no bias: the published bias is meant to be multiplied by this mask.
            bias = name.removesuffix("_mask")
            mask = state.pop(name)
            state[bias] = torch.where(mask == 0, torch.zeros_like(mask), state[bias])
        self.load_state_dict(state)

    def forward(self, images: Tensor) -> Tensor:
        """images [F, 3, H, W] in [0, 1]; features [F, 384, H/16, W/16] after the last norm."""
        mean = torch.tensor(_MEAN, device=images.device).view(3, 1, 1)
        std = torch.tensor(_STD, device=images.device).view(3, 1, 1)
        grid: Tensor = self.patch_embed["proj"]((images - mean) / std)  # [F, 384, h, w]
        height, width = grid.shape[2:]
        first = torch.cat([self.cls_token, self.storage_tokens], dim=1).expand(len(grid), -1, -1)
        x = torch.cat([first.to(grid.dtype), grid.flatten(2).transpose(1, 2)], dim=1)
        rotation = self._rotation(height, width)
        for block in self.blocks:
            x = block(x, rotation)
        x = self.norm(x)[:, -height * width :]  # [F, h*w, 384]
        features: Tensor = x.transpose(1, 2).reshape(len(x), _WIDTH, height, width)
        return features

    def _rotation(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines [h*w, 64] that rotate the queries and keys of patches."""
        device = self.periods.device
        rows = (torch.arange(height, device=device) + 0.5) / height * 2 - 1
        columns = (torch.arange(width, device=device) + 0.5) / width * 2 - 1
        place = torch.cartesian_prod(rows, columns)  # [h*w, 2] in [-1, 1]
        angle = 2 * math.pi * place[..., None] / self.periods.float()  # [h*w, 2, 16]
        angle = angle.flatten(1).tile(2)  # [h*w, 64]
        return angle.cos(), angle.sin()


def _rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the patches among the tokens x [B, heads, tokens, 64]; leave the first ones alone."""
    cos, sin = rotation
    first, patch = x[:, :, : -len(cos)], x[:, :, -len(cos) :].float()
    low, high = patch.chunk(2, dim=-1)
    patch = patch * cos + torch.cat([-high, low], dim=-1) * sin
    return torch.cat([first, patch.to(x.dtype)], dim=2)
