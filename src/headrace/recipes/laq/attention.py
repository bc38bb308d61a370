"""Attention by angle: L2-normalised queries and keys with learned scales.

Logits are 8 * (q / |q| * a) . (k / |k| * b) with learned vectors a and b.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["CrossAttention", "SelfAttention", "angle_attention", "pair_attention", "unit"]

_LOGIT_SCALE = 8.0
#: Added to the mean square of a vector: far below any real one, and keeps zero at zero.
_EPS = 1e-24


def unit(x: Tensor, scale: Tensor) -> Tensor:
    """Vectors of length one times a learned scale, in the precision they come in.

    An RMS norm is that but for a factor, and one kernel that sums in float32.
    """
    size = x.shape[-1]
    return functional.rms_norm(x, (size,), (scale * size**-0.5).to(x.dtype), _EPS).to(x.dtype)


def angle_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Attention of unit queries to unit keys, [..., S, head_dim]; `bias` adds to the logits."""
    if bias is not None:
        bias = bias.to(q.dtype)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=_LOGIT_SCALE)


def pair_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`angle_attention` over two positions, [B, 2, ..., head_dim] along the second axis.

    A softmax over two is a sigmoid of the difference. Attention kernels work on tiles of 64 or
    128 positions and waste nearly all of them here; this is elementwise and needs no transposing.
    """
    k0, k1 = k.unbind(1)
    v0, v1 = v.unbind(1)
    ahead = (q * (k1 - k0).unsqueeze(1)).sum(-1, keepdim=True, dtype=torch.float32)  # logit 1 - 0
    share = torch.sigmoid(_LOGIT_SCALE * ahead).to(v.dtype)
    return torch.lerp(v0.unsqueeze(1), v1.unsqueeze(1), share)


class SelfAttention(nn.Module):
    """Pre-norm self-attention, either across the patches of a frame or across frames."""

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.norm = nn.LayerNorm(dim, bias=False)
        self.to_qkv = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.q_scale = nn.Parameter(torch.ones(head_dim))
        self.k_scale = nn.Parameter(torch.ones(head_dim))
        self.to_out = nn.Linear(heads * head_dim, dim, bias=False)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, T, N, heads, head_dim]."""
        qkv: Tensor = self.to_qkv(self.norm(x))
        q, k, v = qkv.view(*x.shape[:-1], 3, self.heads, self.head_dim).unbind(-3)
        return unit(q, self.q_scale), unit(k, self.k_scale), v

    def across_space(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [B, T, N, d]; each patch sees the patches of its frame; `bias` [heads, N, N]."""
        q, k, v = (y.flatten(0, 1).transpose(1, 2) for y in self._project(x))  # [B*T, H, N, hd]
        seen = angle_attention(q, k, v, bias).transpose(1, 2)  # [B*T, N, H, hd]
        return self._out(seen.reshape(*x.shape[:3], -1))

    def across_time(self, x: Tensor) -> Tensor:
        """x [B, T, N, d]; each patch sees itself in all frames."""
        q, k, v = self._project(x)  # [B, T, N, H, hd]
        if x.shape[1] == 2:
            return self._out(pair_attention(q, k, v).flatten(3))
        q, k, v = (y.movedim(1, 3) for y in (q, k, v))  # [B, N, H, T, hd]
        return self._out(angle_attention(q, k, v).movedim(3, 1).flatten(3))

    def _out(self, seen: Tensor) -> Tensor:
        out: Tensor = self.to_out(seen)
        return out


class CrossAttention(nn.Module):
    """Pre-norm attention to a context, with learned keys and values beside it.

    The null keys let a patch look at nothing.
    """

    def __init__(self, dim: int, heads: int, head_dim: int, null: int = 2) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.norm = nn.LayerNorm(dim, bias=False)
        self.to_q = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * heads * head_dim, bias=False)
        self.null_kv = nn.Parameter(torch.randn(2, null, heads, head_dim))
        self.q_scale = nn.Parameter(torch.ones(head_dim))
        self.k_scale = nn.Parameter(torch.ones(head_dim))
        self.to_out = nn.Linear(heads * head_dim, dim, bias=False)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """x [B, 1, N, d] looks at context [B, C, d]."""
        heads = self.heads, self.head_dim
        q: Tensor = self.to_q(self.norm(x.squeeze(1))).view(len(x), -1, *heads)
        kv: Tensor = self.to_kv(context).view(len(x), -1, 2, *heads)
        null = self.null_kv.to(kv.dtype).unsqueeze(1).expand(-1, len(kv), -1, -1, -1)
        k, v = (torch.cat([null[i], kv[:, :, i]], dim=1) for i in (0, 1))  # [B, null + C, H, hd]
        q, k = unit(q, self.q_scale), unit(k, self.k_scale)
        seen = angle_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        out: Tensor = self.to_out(seen.transpose(1, 2).flatten(2))
        return out.unsqueeze(1)
