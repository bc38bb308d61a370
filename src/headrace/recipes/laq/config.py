"""What a latent-action model is made of: plain values, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from headrace.config import typed
from headrace.errors import UsageError

Features: TypeAlias = Literal["dino", "pixel"]

#: Frames of a window: t and t+k.
FRAMES = 2

#: Codes of a window by (rows, columns) of the grid that the delta network ends in.
_CODE_GRIDS = {1: (1, 1), 2: (2, 1), 4: (2, 2)}


@dataclass(frozen=True, slots=True)
class LaqConfig:
    """The model. `LaqConfig()` is the full one; `lapa()`, `small()` and `tiny()` are others.

    The default uses both teachers. `Laq.build` trains without those whose files are missing.
    """

    image_size: int = 256  #: height and width of a frame
    patch: int = 32  #: height and width of a patch
    dim: int = 1024  #: width of a token
    spatial_depth: int = 8  #: blocks across the patches of a frame
    temporal_depth: int = 8  #: blocks across the two frames
    heads: int = 16
    head_dim: int = 64
    codebook_size: int = 8
    code_dim: int = 32
    code_std: float = 0.3  #: of the numbers of a new code; see `Nsvq`
    codes: int = 4  #: codes of a window: 1, 2 or 4
    features: Features = "dino"  #: what the encoder sees: DINO features or projected pixels
    feature_decoder: bool = True  #: predicts the encoder's tokens of t+k
    pixel_decoder: bool = False  #: predicts the pixels of t+k
    aux_decoder: bool = True  #: the same from the detached action: for pictures
    flow_decoder: bool = True  #: predicts the optical flow of a teacher
    decoder_depth: int = 8
    flow_depth: int = 2
    dino_weights: str | None = None  #: file with the weights of DINOv3 ViT-S/16
    flow_weights: str | None = None  #: file with the weights of RAFT
    teachers_required: bool = False  #: a missing teacher is an error instead of a warning
    replacement: tuple[tuple[int, int], ...] = ((10, 100), (100, 1000), (500, 5000))
    #: (interval, until) in training steps: when little-used codes are replaced
    replace_below: float = 0.1  #: of the even share of a code: less use counts as little
    replace_noise: float = 0.02  #: standard deviation around the code that replaces another

    def __post_init__(self) -> None:
        sizes = ("image_size", "patch", "dim", "heads", "head_dim", "code_dim")
        depths = ("spatial_depth", "temporal_depth", "decoder_depth", "flow_depth")
        for name in (*sizes, *depths):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}", remedy="It must be positive")
        if self.codebook_size < 2:
            raise UsageError(f"codebook_size is {self.codebook_size}", remedy="Give 2 or more")
        if self.image_size % self.patch:
            problem = f"patch {self.patch} does not divide image_size {self.image_size}"
            raise UsageError(problem, remedy="Choose a divisor")
        if self.codes not in _CODE_GRIDS:
            raise UsageError(f"codes is {self.codes}", remedy="It must be 1, 2 or 4")
        if (self.grid + 1) // 2 < max(self.code_grid):
            raise UsageError(
                f"a grid of {self.grid} x {self.grid} patches is too small for {self.codes} codes",
                remedy="Make the patch smaller",
            )
        if self.features not in ("dino", "pixel"):
            raise UsageError(f"features is {self.features!r}", remedy="It must be dino or pixel")
        if not (self.feature_decoder or self.pixel_decoder or self.flow_decoder):
            raise UsageError(
                "no decoder teaches the codes: feature, pixel and flow decoder are off "
                "(the aux decoder sees a detached action)",
                remedy="Switch one of them on",
            )
        if any(interval < 1 or until < 1 for interval, until in self.replacement):
            raise UsageError(f"replacement is {self.replacement}", remedy="Use positive numbers")

    @property
    def grid(self) -> int:
        """Patches along a side of a frame."""
        return self.image_size // self.patch

    @property
    def tokens(self) -> int:
        """Patches of a frame."""
        return self.grid**2

    @property
    def patch_values(self) -> int:
        """Numbers in a patch."""
        return 3 * self.patch**2

    @property
    def inner(self) -> int:
        """Width of the gated feed-forward: two thirds of four times `dim`, as 2730 for 1024."""
        return self.dim * 8 // 3

    @property
    def code_grid(self) -> tuple[int, int]:
        """Rows and columns of a window's codes."""
        return _CODE_GRIDS[self.codes]

    def check_frames(self, shape: tuple[int, ...]) -> None:
        """Refuse frames that are not [B, 3, 2, image_size, image_size]."""
        if len(shape) != 5 or shape[1] != 3 or shape[2] != FRAMES:
            raise UsageError(
                f"frames have the shape {list(shape)} where [B, 3, {FRAMES}, H, W] is needed",
                remedy="Load pairs with layout='BCTHW'",
            )
        height, width = shape[3:]
        if (height, width) != (self.image_size, self.image_size):
            raise UsageError(
                f"frames are {height} x {width} where the model takes "
                f"{self.image_size} x {self.image_size}",
                remedy="Give loader and model the same image_size",
            )

    @classmethod
    def lapa(cls, **changes: Any) -> LaqConfig:
        """The plain LAPA configuration: pixel encoder and pixel decoder only."""
        plain = cls(features="pixel", pixel_decoder=True)
        plain = replace(plain, feature_decoder=False, aux_decoder=False, flow_decoder=False)
        return replace(plain, **changes)

    @classmethod
    def small(cls, **changes: Any) -> LaqConfig:
        """About 50 M parameters at full image size, without teachers: one modest GPU."""
        small = cls(features="pixel", flow_decoder=False, dim=512, heads=8)
        small = replace(small, spatial_depth=4, temporal_depth=2, decoder_depth=3)
        return replace(small, **changes)

    @classmethod
    def tiny(cls, **changes: Any) -> LaqConfig:
        """Less than 2 M parameters at 64 x 64, without teachers: a laptop's CPU, and tests.

        Patches of 8 keep the grid at 8 x 8, so the delta network is that of the full model.
        """
        tiny = cls(features="pixel", flow_decoder=False, image_size=64, patch=8, dim=96, heads=3)
        tiny = replace(tiny, head_dim=32, spatial_depth=2, temporal_depth=2, decoder_depth=2)
        return replace(tiny, **changes)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LaqConfig:
        """The config of plain values, as a YAML file or a checkpoint has them."""
        return typed(cls, values, "model")
