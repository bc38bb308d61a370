"""DINOv3 ViT-S/16 as a plain module that takes the published state dict.

Parameter names and shapes are those of `dinov3_vits16_pretrain_lvd1689m.pth`, so it loads without
renaming. It only looks: no training, no masks, no crops.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["DinoV3"]

_PATCH, _WIDTH, _DEPTH, _HEADS, _REGISTERS = 16, 384, 12, 6, 4
_EPS = 1e-5
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
_BASE = 100.0  # of the periods of the rotary positions


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.proj = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)  # [B, heads, 1 + registers + patches, 64]
        seen = functional.scaled_dot_product_attention(_turned(q, turn), _turned(k, turn), v)
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

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.ls1.gamma * self.attn(self.norm1(x), turn)
        out: Tensor = x + self.ls2.gamma * self.mlp(self.norm2(x))
        return out


class DinoV3(nn.Module):
    """Frames to patch features. Load it with `load_published`."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, _WIDTH, _PATCH, _PATCH)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.storage_tokens = nn.Parameter(torch.zeros(1, _REGISTERS, _WIDTH))
        self.blocks = nn.ModuleList(_Block() for _ in range(_DEPTH))
        self.norm = nn.LayerNorm(_WIDTH, eps=_EPS)
        self.periods: Tensor
        quarter = _WIDTH // _HEADS // 4
        periods = _BASE ** (torch.arange(quarter) / quarter)  # of 16 turns a coordinate
        self.register_buffer("periods", periods)
        self.requires_grad_(False)

    def load_published(self, state: dict[str, Tensor]) -> None:
        """Take the published weights over; names that are missing are a KeyError of torch."""
        state = dict(state)
        if "rope_embed.periods" in state:
            state["periods"] = state.pop("rope_embed.periods")
        state.setdefault("periods", self.periods)
        state.pop("mask_token", None)  # stands for patches that are hidden in training
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
        turn = self._turns(height, width)
        for block in self.blocks:
            x = block(x, turn)
        x = self.norm(x)[:, -height * width :]  # [F, h*w, 384]
        features: Tensor = x.transpose(1, 2).reshape(len(x), _WIDTH, height, width)
        return features

    def _turns(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines [h*w, 64] by which queries and keys of patches are turned."""
        device = self.periods.device
        rows = (torch.arange(height, device=device) + 0.5) / height * 2 - 1
        columns = (torch.arange(width, device=device) + 0.5) / width * 2 - 1
        place = torch.cartesian_prod(rows, columns)  # [h*w, 2] in [-1, 1]
        angle = 2 * math.pi * place[..., None] / self.periods.float()  # [h*w, 2, 16]
        angle = angle.flatten(1).tile(2)  # [h*w, 64]
        return angle.cos(), angle.sin()


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """The patches among the tokens x [B, heads, tokens, 64], turned; the first ones as they are."""
    cos, sin = turn
    first, patch = x[:, :, : -len(cos)], x[:, :, -len(cos) :].float()
    low, high = patch.chunk(2, dim=-1)
    patch = patch * cos + torch.cat([-high, low], dim=-1) * sin
    return torch.cat([first, patch.to(x.dtype)], dim=2)
