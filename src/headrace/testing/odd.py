"""The preset `odd`: small datasets with everything that is rare, legal and easy to get wrong.

Real TFDS reads all of them. Two legal schemas are left out because TFDS itself cannot read them
back inside steps: a tensor of shape (0,) and a sequence of fixed length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.testing import features as f
from headrace.testing.picture import DepthScene, Scene, View, seeded
from headrace.testing.values import displacements, draw_path, encode_image
from headrace.testing.writer import Values

_Layout: TypeAlias = dict[str, list[list[int]]]
_StepMaker: TypeAlias = Callable[["Step"], Values]

_FLAGS: dict[str, f.Feature] = {"is_first": f.Scalar("bool"), "is_last": f.Scalar("bool")}


@dataclass(frozen=True)
class OddDataset:
    """A small fixed dataset; see `synth.SyntheticDataset`. Its number of episodes is fixed."""

    name: str
    number: int  #: in the pictures' tags
    step_features: dict[str, f.Feature]
    make_step: _StepMaker
    lengths: tuple[int, ...] = (4, 6, 3)  #: of the episodes, by number
    layout: _Layout | None = None  #: split -> shards -> episode numbers; else one shard of train
    metadata: dict[str, f.Feature] | None = None
    make_metadata: Callable[[np.random.Generator, int], Values] | None = None
    dialect: f.Dialect = "current"
    version: str = "1.0.0"

    @property
    def dir(self) -> str:
        """Folder below the root."""
        return self.name

    @property
    def features(self) -> f.FeaturesDict:
        """The schema of an episode."""
        features = dict(self.metadata or {"episode_metadata": PLAIN_METADATA})
        features["steps"] = f.Steps(f.FeaturesDict({**_FLAGS, **self.step_features}))
        return f.FeaturesDict(features)

    def splits(self, episodes: int = 0) -> _Layout:  # noqa: ARG002
        """The shards of every split; their number of episodes is fixed."""
        return self.layout or {"train": [list(range(len(self.lengths)))]}

    def steps(self, seed: int, episode: int, max_steps: int | None = None) -> int:  # noqa: ARG002
        """The length of an episode."""
        steps = self.lengths[episode]
        return steps if max_steps is None else min(steps, max_steps)

    def episode(self, seed: int, episode: int, max_steps: int | None = None) -> Values:
        """All values of an episode."""
        count = self.steps(seed, episode, max_steps)
        rng = seeded(seed, self.name, episode)
        scenes = Scenes(self.name, self.number, seed, episode, count)
        rows = []
        for t in range(count):
            flags = {"is_first": t == 0, "is_last": t == count - 1}
            rows.append({**flags, **self.make_step(Step(rng, episode, t, scenes))})
        make = self.make_metadata or plain_metadata
        values = make(rng, episode)
        values["steps"] = columns(f.FeaturesDict({**_FLAGS, **self.step_features}), rows)
        return values


def columns(feature: f.Feature, rows: list[Any]) -> Any:
    """Steps given one by one as the columns that the writer takes."""
    match feature:
        case f.FeaturesDict(features):
            return {
                name: columns(inner, [row[name] for row in rows])
                for name, inner in features.items()
            }
        case f.Sequence(f.FeaturesDict(features)):
            return {
                name: columns(f.Sequence(inner), [[one[name] for one in row] for row in rows])
                for name, inner in features.items()
            }
        case _:
            return rows


# -- values: what steps and metadata are made from -------------------------------------------------

PLAIN_METADATA = f.FeaturesDict({"file_path": f.Text(), "episode_id": f.Scalar("int32")})


class Scenes:
    """The pictures of one episode, drawn on first use."""

    def __init__(self, name: str, number: int, seed: int, episode: int, count: int) -> None:
        self.path = draw_path(seeded(seed, name, episode, 8), count)
        self._view = partial(View, name, number)
        self._scene = cache(lambda view: Scene(view, seed, episode, tuple(self.path[-1, :2])))
        self._depth = cache(lambda view, dtype: DepthScene(view, seed, episode, dtype))

    def picture(
        self, t: int, camera: str, height: int, width: int, channels: int = 3, number: int = 0
    ) -> npt.NDArray[np.uint8]:
        """A picture of step t; `number` is the camera's, in the tag."""
        scene = self._scene(self._view(number, camera, height, width, channels))
        return scene.frame(t, self.path[t])

    def depth(self, t: int, camera: str, size: int, dtype: str) -> npt.NDArray[Any]:
        """A depth picture of step t."""
        return self._depth(self._view(0, camera, size, size), dtype).frame(t, self.path[t])


@dataclass(frozen=True)
class Step:
    """What a step's values are made from."""

    rng: np.random.Generator
    episode: int
    t: int
    scenes: Scenes


def plain_metadata(rng: np.random.Generator, episode: int) -> Values:  # noqa: ARG001
    return {"episode_metadata": {"file_path": f"/data/{episode}.hdf5", "episode_id": episode}}


# A camera, a state and an action, as `values` has them.


def seen_step(step: Step) -> Values:
    path = step.scenes.path
    return {
        "observation": {
            "image": encode_image(step.scenes.picture(step.t, "image", 64, 64), "jpeg"),
            "state": path[step.t, :2],
        },
        "action": displacements(path)[step.t, :2],
    }


# Numbers: every dtype that TFDS reads, at its extremes; bare, as bytes and compressed.

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
_RAW = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint64", *_FLOATS)

NUMBERS: dict[str, f.Feature] = {
    **{f"{dtype}_scalar": f.Scalar(dtype) for dtype in ("bool", *_INTEGERS, *_FLOATS)},
    **{f"{dtype}_none": f.Tensor((3,), dtype) for dtype in ("bool", *_INTEGERS, *_FLOATS)},
    **{f"{dtype}_bytes": f.Tensor((2, 2), dtype, "bytes") for dtype in _RAW},
    **{f"{dtype}_zlib": f.Tensor((4,), dtype, "zlib") for dtype in _RAW},
    "matrix": f.Tensor((2, 3), "float32"),
    "bools": f.Tensor((2, 2, 2), "bool"),
    "wide": f.Tensor((257,), "int64"),
    "one": f.Tensor((1, 1), "uint8"),
    "scalar_bytes": f.Tensor((), "float64", "bytes"),
}


def number_step(step: Step) -> Values:
    return {name: _extremes(step.rng, feature) for name, feature in NUMBERS.items()}


def _extremes(rng: np.random.Generator, feature: f.Feature) -> npt.NDArray[Any]:
    match feature:
        case f.Scalar(dtype):
            shape: tuple[int, ...] = ()
            exact = False
        case f.Tensor(known, dtype, encoding):
            shape = tuple(size for size in known if size is not None)
            exact = encoding != "none"
        case _:
            raise TypeError(feature)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        pool = np.array([False, True])
    elif kind.kind == "f":
        limits = np.finfo(kind if exact else min(kind, np.dtype("f4"), key=lambda d: d.itemsize))
        some = [0.0, -0.0, 0.1, -1.5, np.inf, -np.inf, np.nan, limits.max, limits.tiny]
        pool = np.array(some, kind if exact else limits.dtype).astype(kind)
    else:
        limits_ = np.iinfo(kind)
        pool = np.array([0, 1, 127, limits_.max, limits_.min, limits_.max // 3], kind)
    return np.asarray(rng.choice(pool, shape))


# Shapes that are only known per value; these need an encoding.

SHAPES: dict[str, f.Feature] = {
    "rows_bytes": f.Tensor((None, 2), "float32", "bytes"),
    "rows_zlib": f.Tensor((None, 2), "int16", "zlib"),
    "columns_zlib": f.Tensor((3, None), "float64", "zlib"),
    "grid_bytes": f.Tensor((None, None), "uint8", "bytes"),
    "grid_zlib": f.Tensor((None, None), "float64", "zlib"),
    "volume_zlib": f.Tensor((None, None, 3), "uint8", "zlib"),
    "line_bytes": f.Tensor((None,), "bool", "bytes"),
}


def shape_step(step: Step) -> Values:
    rows, columns = (int(n) for n in step.rng.integers(0 if step.t % 2 else 1, 6, 2))

    def some(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        return step.rng.integers(0, 200, shape).astype(dtype)

    return {
        "rows_bytes": some((rows, 2), "float32"),
        "rows_zlib": some((columns, 2), "int16"),
        "columns_zlib": some((3, columns), "float64") / 7,
        "grid_bytes": some((rows, columns), "uint8"),
        "grid_zlib": some((columns, rows), "float64") / 3,
        "volume_zlib": some((rows, columns, 3), "uint8"),
        "line_bytes": some((rows,), "uint8") > 99,
    }


# Ragged: sequences inside steps, and sequences inside those.

RAGGED: dict[str, f.Feature] = {
    "tokens": f.Sequence(f.Tensor((), "int64")),
    "points": f.Sequence(f.Tensor((3,), "float32")),
    "tree": f.Sequence(f.Sequence(f.Tensor((), "float32"))),
    "deep": f.Sequence(f.Sequence(f.Sequence(f.Scalar("int32")))),
    "words": f.Sequence(f.Text()),
    "things": f.Sequence(f.FeaturesDict({"name": f.Text(), "flags": f.Tensor((2,), "bool")})),
    "groups": f.Sequence(f.FeaturesDict({"ids": f.Sequence(f.Tensor((), "int64"))})),
    "thumbnails": f.Sequence(f.Image((8, 8, 3), "uint8", "png")),
    "nothing": f.Sequence(f.Tensor((), "int64")),
    "no_words": f.Sequence(f.Sequence(f.Text())),
}


def ragged_step(step: Step) -> Values:
    rng = step.rng

    def count() -> int:
        return int(rng.integers(0, 4))

    def number() -> float:
        return float(np.float32(rng.normal()))

    def picture() -> npt.NDArray[np.uint8]:
        return rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)

    return {
        "tokens": [int(n) for n in rng.integers(-5, 300, count())],
        "points": [rng.standard_normal(3, np.float32) for _ in range(count())],
        "tree": [[number() for _ in range(count())] for _ in range(count())],
        "deep": [[[7] * count() for _ in range(count())] for _ in range(count())],
        "words": [["", "ja", "über"][i % 3] for i in range(count())],
        "things": [
            {"name": f"thing {i}", "flags": rng.integers(0, 2, 2) > 0} for i in range(count())
        ],
        "groups": [{"ids": list(range(count()))} for _ in range(count())],
        "thumbnails": [encode_image(picture(), "png") for _ in range(count())],
        "nothing": [],
        "no_words": [],
    }


# Texts: empty, long, in other scripts; tensors of strings; bytes that are not text.

TEXTS: dict[str, f.Feature] = {
    "language_instruction": f.Text(),
    "pair": f.Tensor((2,), "string"),
    "table": f.Tensor((2, 2), "string"),
    "plain": f.Tensor((), "string"),
    "raw": f.Tensor((), "string"),
}
_SENTENCES = (
    "",
    "pick up the red mug",
    "hebe die rote Tasse auf",
    "拿起红色的杯子",
    "ارفع الكوب الأحمر",
    "lift the 🥤 — carefully",
    "a\0b\n\tc",
    "x" * 300,
)


def text_step(step: Step) -> Values:
    a, b, c, d = (_SENTENCES[i] for i in step.rng.permutation(len(_SENTENCES))[:4])
    return {
        "language_instruction": _SENTENCES[(step.episode + step.t) % len(_SENTENCES)],
        "pair": [a, b],
        "table": [[a, b], [c, d]],
        "plain": c,
        "raw": step.rng.integers(0, 256, int(step.rng.integers(0, 40))).astype(np.uint8).tobytes(),
    }


# Images: grey, with transparency, 16 bits, floats, sizes that change within an episode.

IMAGES: dict[str, f.Feature] = {
    "grey_jpeg": f.Image((64, 64, 1), "uint8", "jpeg"),
    "grey_png": f.Image((48, 64, 1), "uint8", "png"),
    "transparent": f.Image((64, 64, 4), "uint8", "png"),
    "deep_colour": f.Image((32, 32, 3), "uint16", "png"),
    "depth_16": f.Image((64, 64, 1), "uint16", "png"),
    "depth_32": f.Image((64, 64, 1), "float32"),
    "unstated_jpeg": f.Image((64, 64, 3)),
    "unstated_png": f.Image((64, 64, 3)),
    "any_size_jpeg": f.Image((None, None, 3), "uint8", "jpeg"),
    "any_size_png": f.Image((None, None, 3), "uint8", "png"),
    "tiny": f.Image((1, 1, 3), "uint8", "png"),
    "odd_size": f.Image((65, 67, 3), "uint8", "jpeg"),
}


def image_step(step: Step) -> Values:
    t, rng, scenes = step.t, step.rng, step.scenes
    height, width = 64 + 8 * (t % 3), 96 - 16 * (t % 2)
    rgb = scenes.picture(t, "transparent", 64, 64)
    alpha = np.broadcast_to(np.arange(64, dtype=np.uint8)[:, None, None] * 4, (64, 64, 1))
    grey = [scenes.picture(t, name, h, 64, 1) for name, h in (("grey_jpeg", 64), ("grey_png", 48))]
    sized = scenes.picture(t, "any_size", height, width)
    square = scenes.picture(t, "unstated", 64, 64)
    return {
        "grey_jpeg": encode_image(grey[0], "jpeg"),
        "grey_png": encode_image(grey[1], "png"),
        "transparent": encode_image(np.concatenate([rgb, alpha], axis=2), "png"),
        "deep_colour": encode_image(rng.integers(0, 65536, (32, 32, 3)).astype(np.uint16), "png"),
        "depth_16": encode_image(scenes.depth(t, "depth_16", 64, "uint16"), "png"),
        "depth_32": encode_image(scenes.depth(t, "depth_32", 64, "float32"), "png"),
        "unstated_jpeg": encode_image(square, "jpeg"),
        "unstated_png": encode_image(square, "png"),
        "any_size_jpeg": encode_image(sized, "jpeg"),
        "any_size_png": encode_image(sized, "png"),
        "tiny": encode_image(rng.integers(0, 256, (1, 1, 3)).astype(np.uint8), "png"),
        "odd_size": encode_image(scenes.picture(t, "odd_size", 65, 67), "jpeg"),
    }


# A missing camera, as in BridgeData: the picture is black, and the metadata says so.

CAMERAS: dict[str, f.Feature] = {
    "observation": f.FeaturesDict(
        {f"image_{i}": f.Image((64, 64, 3), "uint8", "jpeg") for i in range(3)}
    ),
    "action": f.Tensor((2,), "float32"),
    "language_instruction": f.Text(),
}
CAMERA_METADATA = f.FeaturesDict(
    {
        **{f"has_image_{i}": f.Scalar("bool") for i in range(3)},
        "has_language": f.Scalar("bool"),
        "episode_id": f.Scalar("int32"),
        "file_path": f.Text(),
    }
)


def _has_camera(episode: int, camera: int) -> bool:
    return camera == 0 or bool((episode + camera) % 2)


def camera_step(step: Step) -> Values:
    blank = np.zeros((64, 64, 3), np.uint8)
    images = {
        f"image_{i}": step.scenes.picture(step.t, f"image_{i}", 64, 64, number=i)
        if _has_camera(step.episode, i)
        else blank
        for i in range(3)
    }
    return {
        "observation": {name: encode_image(pixels, "jpeg") for name, pixels in images.items()},
        "action": displacements(step.scenes.path)[step.t, :2],
        "language_instruction": "" if step.episode % 3 == 2 else "wipe the table",
    }


def camera_metadata(rng: np.random.Generator, episode: int) -> Values:  # noqa: ARG001
    has = {f"has_image_{i}": _has_camera(episode, i) for i in range(3)}
    rest = {"has_language": episode % 3 != 2, "episode_id": episode, "file_path": f"/{episode}.npy"}
    return {"episode_metadata": {**has, **rest}}


# No camera at all.

BLIND: dict[str, f.Feature] = {
    "observation": f.FeaturesDict({"state": f.Tensor((7,), "float32")}),
    "action": f.FeaturesDict({"delta/xyz": f.Tensor((3,), "float32"), "open": f.Scalar("bool")}),
}


def blind_step(step: Step) -> Values:
    rng = step.rng
    return {
        "observation": {"state": rng.standard_normal(7, np.float32)},
        "action": {"delta/xyz": rng.standard_normal(3, np.float32), "open": step.t % 2 == 0},
    }


# Metadata of every kind, at the top level and nested.

_ARM = f.FeaturesDict({"joints": f.Scalar("int32"), "reach": f.Scalar("float32")})
METADATA: dict[str, f.Feature] = {
    "episode_id": f.Scalar("int64"),
    "name/with/slashes": f.Text(),
    "episode_metadata": f.FeaturesDict(
        {
            "success": f.Scalar("bool"),
            "matrix": f.Tensor((2, 2), "float64"),
            "exact": f.Tensor((2,), "float64", "bytes"),
            "rows": f.Tensor((None, 2), "float32"),
            "grid": f.Tensor((None, None), "int32", "zlib"),
            "tags": f.Tensor((2,), "string"),
            "ids": f.Sequence(f.Tensor((), "int64")),
            "notes": f.Sequence(f.Text()),
            "tree": f.Sequence(f.Sequence(f.Tensor((), "float32"))),
            "people": f.Sequence(f.FeaturesDict({"name": f.Text(), "age": f.Scalar("uint8")})),
            "thumbnail": f.Image((16, 16, 3), "uint8", "png"),
            "robot": f.FeaturesDict({"name": f.Text(), "arm": _ARM}),
        }
    ),
}


def rich_metadata(rng: np.random.Generator, episode: int) -> Values:
    return {
        "episode_id": -episode,
        "name/with/slashes": f"über/{episode}",
        "episode_metadata": {
            "success": episode % 2 == 0,
            "matrix": rng.standard_normal((2, 2), np.float32).astype(np.float64),
            "exact": rng.standard_normal(2),
            "rows": rng.standard_normal((episode, 2), np.float32),
            "grid": rng.integers(-9, 9, (episode, 3)).astype(np.int32),
            "tags": ["a", ""],
            "ids": list(range(episode)),
            "notes": ["first", "zweitens"][:episode],
            "tree": [[0.5] * n for n in range(episode)],
            "people": {"name": ["Ada", "Grace"][:episode], "age": [36, 85][:episode]},
            "thumbnail": encode_image(rng.integers(0, 256, (16, 16, 3)).astype(np.uint8), "png"),
            "robot": {"name": "widowx", "arm": {"joints": 6, "reach": 0.5}},
        },
    }


def reward_step(step: Step) -> Values:
    return {"reward": np.float32(step.t / 8)}


# -- the datasets ----------------------------------------------------------------------------------


@cache
def datasets() -> dict[str, OddDataset]:
    """All odd datasets by name."""
    camera: dict[str, f.Feature] = {
        "observation": f.FeaturesDict(
            {"image": f.Image((64, 64, 3), "uint8", "jpeg"), "state": f.Tensor((2,), "float32")}
        ),
        "action": f.Tensor((2,), "float32"),
    }
    lengths = OddDataset(
        "odd_lengths",
        200,
        camera,
        seen_step,
        lengths=(5, 1, 2, 0, 9, 1, 2, 3, 0, 6),
        layout={"test": [[9]], "train": [[0, 1], [], [2, 3, 4, 5], []], "val": [[], [6, 7], [8]]},
    )
    made = [
        lengths,
        OddDataset("odd_older_schema", 201, camera, seen_step, dialect="older"),
        OddDataset("odd_typed_schema", 202, camera, seen_step, dialect="typed"),
        OddDataset("odd_numbers", 203, NUMBERS, number_step, lengths=(4, 0, 6)),
        OddDataset("odd_shapes", 204, SHAPES, shape_step, lengths=(6, 0, 5)),
        OddDataset("odd_ragged", 205, RAGGED, ragged_step, lengths=(5, 0, 1, 7)),
        OddDataset("odd_texts", 206, TEXTS, text_step),
        OddDataset("odd_images", 207, IMAGES, image_step),
        OddDataset(
            "odd_missing_camera",
            208,
            CAMERAS,
            camera_step,
            lengths=(3, 4, 2, 5),
            metadata={"episode_metadata": CAMERA_METADATA},
            make_metadata=camera_metadata,
        ),
        OddDataset("odd_no_camera", 209, BLIND, blind_step),
        OddDataset(
            "odd_metadata",
            210,
            {"reward": f.Scalar("float32")},
            reward_step,
            metadata=METADATA,
            make_metadata=rich_metadata,
        ),
    ]
    return {dataset.name: dataset for dataset in made}
