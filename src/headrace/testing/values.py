"""Believable values for every feature of an episode.

Images and depth show the scene, the registry's state and action follow the motion (see
`motion`), texts are words, flags mark the first and last step, and everything else moves
smoothly. Every field draws from random numbers of its own, so adding one changes no other.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from headrace.testing import features as f
from headrace.testing.dataset import image_features
from headrace.testing.depth import DepthScene
from headrace.testing.instructions import WORDS, paraphrase
from headrace.testing.motion import displacements, waypoints
from headrace.testing.picture import Scene, View, seeded
from headrace.testing.png import encode_png
from headrace.testing.wire import Values

__all__ = ["EpisodeMaker", "encode_image"]

_JPEG_QUALITY = 90  # with the scenes' texture and grain: bytes per frame like the real datasets
_CODES = 512  # places for the code points of an instruction


@dataclass(frozen=True)
class EpisodeMaker:
    """Fills the features of one episode."""

    features: f.FeaturesDict
    name: str  #: of the dataset, on the label and in the random numbers
    number: int  #: of the dataset, in the tag
    seed: int
    episode: int
    path: npt.NDArray[np.float32]  #: the object's places [steps, 3]
    instruction: str
    state: str | None = None  #: step key of the field that holds the object's place
    action: str | None = None  #: step key of the field that holds its displacement
    codes: str | None = None  #: step key of an instruction given as code points
    plain: bool = False  #: pictures of the scene alone

    def make(self) -> Values:
        """The values of an episode, column by column."""
        values: Values = self._fill(self.features, "", 1, None)
        return values

    @cached_property
    def _cameras(self) -> dict[str, int]:
        return {key: number for number, (key, _) in enumerate(image_features(self.features))}

    def _fill(
        self, feature: f.Feature, key: str, count: int, levels: list[list[int]] | None
    ) -> Any:
        """Values of a feature, `count` of them, nested into rows by the lengths in `levels`."""
        match feature:
            case f.FeaturesDict(features):
                return {
                    name: self._fill(inner, f"{key}/{name}" if key else name, count, levels)
                    for name, inner in features.items()
                }
            case f.Steps(inner):
                return self._fill(inner, key, len(self.path), [])
            case f.Sequence(inner):
                lengths = [int(n) for n in self._rng(key).integers(0, 4, count)]
                deeper = [] if levels is None else [*levels, lengths]
                return self._fill(inner, key, sum(lengths), deeper)
            case f.Tensor() | f.Scalar() | f.Text() | f.Image():
                leaf = self._leaf(feature, key, count)
        if levels is None:
            return leaf[0]
        for lengths in reversed(levels):
            ends = np.cumsum(lengths)
            leaf = [leaf[end - size : end] for end, size in zip(ends, lengths, strict=True)]
        return leaf

    def _leaf(self, feature: f.Tensor | f.Scalar | f.Text | f.Image, key: str, count: int) -> Any:
        match feature:
            case f.Image():
                return self._images(feature, key)
            case f.Text() | f.Tensor(_, "string"):
                return self._texts(key, count)
            case f.Tensor((int(height), int(width)), "float32") if "depth" in key:
                camera = zlib.crc32(key.encode()) % 16  # not a camera of the schema, but its own
                view = View(self.name, self.number, camera, key, height, width)
                scene = DepthScene(view, self.seed, self.episode, "float32")
                return np.stack([scene.frame(t, place) for t, place in enumerate(self.path)])
            case f.Scalar(dtype):
                return self._numbers(key, (), dtype, count)
            case f.Tensor(shape, dtype):
                known = tuple(size for size in shape if size is not None)
                return self._numbers(key, known, dtype, count)

    def _images(self, feature: f.Image, key: str) -> list[bytes]:
        height, width, channels = (int(size or 0) for size in feature.shape)
        name = key.rpartition("/")[2]
        camera = self._cameras[key]
        view = View(self.name, self.number, camera, name, height, width, channels, self.plain)
        if feature.dtype != "uint8":
            depth = DepthScene(view, self.seed, self.episode, feature.dtype)
            frames = (depth.frame(t, place) for t, place in enumerate(self.path))
            return [encode_image(frame, "png") for frame in frames]
        goal = float(self.path[-1, 0]), float(self.path[-1, 1])
        scene = Scene(view, self.seed, self.episode, goal)
        pictures = (scene.frame(t, place) for t, place in enumerate(self.path))
        return [encode_image(picture, feature.encoding_format) for picture in pictures]

    def _texts(self, key: str, count: int) -> list[str]:
        last, rng = key.rpartition("/")[2], self._rng(key)
        if last in WORDS:
            return [WORDS[last][i] for i in rng.integers(len(WORDS[last]), size=count)]
        if last in ("language_instruction_2", "language_instruction_3"):
            return [paraphrase(self.instruction, rng)] * count
        if last.endswith("instruction"):
            return [self.instruction] * count
        suffix = {"file_path": ".hdf5", "recording_folderpath": "/recordings/MP4"}.get(last, "")
        prefix = f"/data/{self.name}/" if suffix else ""
        return [f"{prefix}episode_{self.episode:06d}{suffix}"] * count

    def _numbers(
        self, key: str, shape: tuple[int, ...], dtype: str, count: int
    ) -> npt.NDArray[Any]:
        """[count, *shape]; floats are such that float32 holds them exactly."""
        if key.removeprefix("steps/") == self.codes:
            return self._code_points(count)
        width = int(np.prod(shape, dtype=int))
        special = self._special(key.rpartition("/")[2], width, count)
        flat = self._smooth(key, width, count) if special is None else special
        if special is None and dtype == "bool":
            flat = flat > 0
        elif special is None and not dtype.startswith("float"):
            flat = np.floor(np.abs(flat) * (2 if dtype == "uint8" else 40))
        if key.startswith("steps/"):
            self._follow(key.removeprefix("steps/"), flat)
        return flat.astype(np.float32).astype(dtype).reshape(count, *shape)

    def _follow(self, key: str, flat: npt.NDArray[Any]) -> None:
        """Put the object's place or displacement where the registry looks for it."""
        width = min(3, flat.shape[1])
        if key == self.action and key.endswith("future/xyz_residual"):
            flat[:] = waypoints(self.path, flat.shape[1] // 3).reshape(flat.shape)
        elif key == self.action:
            flat[:, :width] = displacements(self.path)[:, :width]
        elif key == self.state:
            flat[:, :width] = self.path[:, :width]

    def _special(self, last: str, width: int, count: int) -> npt.NDArray[Any] | None:
        """Fields with a fixed meaning in RLDS."""
        final = np.equal(np.arange(count), count - 1).astype(np.float32)[:, None]
        match last:
            case "is_first":
                return np.equal(np.arange(count), 0)[:, None]
            case "is_last" | "is_terminal" | "reward":
                return final
            case "discount":
                return np.ones((count, 1))
            case "terminate_episode":
                return final if width == 1 else np.hstack([final, 1 - final, 0 * final])
            case "n_transitions" | "num_steps" | "sequence_length":
                return np.full((count, 1), len(self.path))
            case _ if last.endswith("embedding"):
                rng = np.random.default_rng(zlib.crc32(self.instruction.encode()))
                vector = rng.standard_normal(width, np.float32)
                return np.tile(vector / np.linalg.norm(vector), (count, 1))
            case _ if last.endswith("segmentation"):
                rows = np.arange(width) // 4096 % 5
                return np.tile(rows, (count, 1)) + np.arange(count)[:, None] % 3
            case _:
                return None

    def _smooth(self, key: str, width: int, count: int) -> npt.NDArray[np.float32]:
        rng = self._rng(key)
        time = np.arange(count, dtype=np.float32)[:, None]
        speed = rng.uniform(0.02, 0.2, width).astype(np.float32)
        phase = rng.uniform(0, 2 * np.pi, width).astype(np.float32)
        size = rng.uniform(0.05, 1.2, width).astype(np.float32)
        waves: npt.NDArray[np.float32] = np.sin(time * speed + phase) * size
        return waves

    def _code_points(self, count: int) -> npt.NDArray[np.int32]:
        codes = np.zeros(_CODES, np.int32)
        codes[: len(self.instruction)] = [ord(letter) for letter in self.instruction]
        return np.tile(codes, (count, 1))

    def _rng(self, key: str) -> np.random.Generator:
        return seeded(self.seed, self.name, self.episode, zlib.crc32(key.encode()))


def encode_image(pixels: npt.NDArray[Any], encoding: str | None) -> bytes:
    """Encode a picture; float32 is bit-cast to four channels, as TFDS does; None means JPEG."""
    if pixels.dtype == np.float32:
        height, width = pixels.shape[:2]
        return encode_png(np.ascontiguousarray(pixels).view(np.uint8).reshape(height, width, 4))
    if encoding == "png":
        return encode_png(pixels)
    grey = pixels.ndim == 2 or pixels.shape[2] == 1
    data: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels.reshape(*pixels.shape[:2], -1)),
        quality=_JPEG_QUALITY,
        colorspace="GRAY" if grey else "RGB",
        colorsubsampling="Gray" if grey else "420",
    )
    return data
