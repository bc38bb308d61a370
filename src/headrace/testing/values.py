"""Believable values for every feature of an episode.

Images and depth show the scene, the registry's state and action follow the motion, texts are
words, flags mark the first and last step, and everything else moves smoothly. Every field draws
from random numbers of its own, so adding one changes no other.

The contract that every synthetic dataset with numbers keeps:

- the first two numbers of the registry's *state* at step t are the object's place in the picture
  of step t, as fractions of the image's width and height;
- the first two numbers of the registry's *action* at step t are the displacement to step t + 1
  (zero at the last step), so the actions t ... t+k-1 add up to the displacement from t to t+k;
- where the tensors are wider, the third number is the same for the height above the table;
- `future/xyz_residual` of bc_z holds ten waypoints of three numbers, each the displacement from
  step t to t+1, t+2, ... t+10; the first of them is the action above.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import simplejpeg

from headrace.testing import features as f
from headrace.testing.picture import DepthScene, Scene, View, seeded
from headrace.testing.writer import Values

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
        return {key: number for number, (key, _) in enumerate(f.image_features(self.features))}

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


# -- motion: where the object is at every step -----------------------------------------------------

# The box the object stays in: below the label, above the tag, inside the edges.
LOW = np.array([0.12, 0.4, 0.0])
HIGH = np.array([0.88, 0.80, 0.3])
_LEAST_MOVE = 0.25  # between waypoints, so that every episode visibly moves
_STEPS_PER_MOVE = 22  # a reach or a lift takes about this long in the real datasets


def draw_path(rng: np.random.Generator, steps: int) -> npt.NDArray[np.float32]:
    """The object's places [steps, 3]: x, y and height, smooth, with short rests in between."""
    count = 2 + round(steps / _STEPS_PER_MOVE)
    points = [rng.uniform(LOW, HIGH)]
    while len(points) < count:
        tries = rng.uniform(LOW, HIGH, (8, 3))
        moves = np.linalg.norm(tries[:, :2] - points[-1][:2], axis=1)
        far = tries[moves > _LEAST_MOVE]
        points.append(far[0] if len(far) else tries[np.argmax(moves)])
    along = np.linspace(0, count - 1, max(steps, 1))
    move = np.minimum(along.astype(int), count - 2)
    u = (along - move)[:, None]
    eased = u**3 * (10 - 15 * u + 6 * u**2)  # minimum jerk: at rest at both ends
    start, end = np.array(points)[move], np.array(points)[move + 1]
    path: npt.NDArray[np.float32] = (start + (end - start) * eased).astype(np.float32)
    return path[:steps]


def displacements(path: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """From every step to the next, zero at the last."""
    moves = np.zeros_like(path)
    moves[:-1] = np.diff(path, axis=0)
    return moves


def waypoints(path: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
    """From every step to each of the next `count` steps [steps, count, 3]."""
    steps = len(path)
    # Beyond the last step the object rests.
    ahead = np.minimum(np.arange(steps)[:, None] + np.arange(1, count + 1), steps - 1)
    moves: npt.NDArray[np.float32] = path[ahead] - path[:, None]
    return moves


# -- words: what an episode is about ---------------------------------------------------------------

_T = TypeVar("_T")

_COLOURS = ("red", "blue", "green", "yellow", "orange", "white", "brown", "silver")
_THINGS = (
    "mug", "bowl", "sponge", "spoon", "apple", "can of beans", "toy car", "cloth", "pot lid",
    "marker", "banana", "water bottle", "screwdriver", "carrot", "wooden block", "teapot",
)  # fmt: skip
_PLACES = (
    "on the tray", "in the sink", "in the top drawer", "next to the kettle", "on the folded towel",
    "into the basket", "at the edge of the table", "behind the cereal box", "on the stove",
)  # fmt: skip
_TASKS = (
    "pick up the {colour} {thing} and place it {place}",
    "put the {colour} {thing} {place}",
    "move the {thing} closer to the {colour} {other}",
    "take the {colour} {thing} and set it down {place}",
    "slide the {thing} to the left of the {colour} {other}",
    "hand over the {colour} {thing}",
    "open the drawer, then put the {thing} {place}",
    "stack the {colour} {thing} on top of the {other}",
)
_SHAPES = ("cube", "star", "moon", "hexagon", "pentagon")
_PUSHES = (
    "push the {colour} {shape} to the left side of the {second} {other}",
    "slide the {colour} {shape} towards the {second} {other}",
    "separate the {colour} {shape} from the {second} {other}",
    "schiebe den grünen Würfel neben den gelben Stern",
    "pousse l'étoile rouge à côté du cube bleu",
    "пододвинь жёлтый куб к синему полумесяцу",
    "把红色的星星推到蓝色方块旁边",
    "push the {colour} {shape} ➜ {second} {other} 🙂",
)

#: Ordinary values for text fields, by the last part of their key.
WORDS: dict[str, tuple[str, ...]] = {
    "robot": ("sawyer", "widowx", "baxter", "kuka", "fetch", "franka"),
    "action": (
        'pick_and_place("yellow shirt", "drawer")',
        'pick_and_toss("soda can", "recycling bin")',
        'pick_and_place("black socks", "laundry hamper")',
        "done()",
    ),
    "object": ("yellow shirt", "soda can", "black socks", "picture book", "lemon"),
    "receptacles": ("drawer", "recycling bin", "laundry hamper", "shelf", "sofa"),
    "last_action_str": ("m", "r", "l", "ls", "zm", "zp", "yp", "p", "d", "end"),
    "task_type": ("ObjectNavType", "PickupType", "FetchType", "RoomVisit"),
    "task_target_split": ("train", "val"),
    "end-effector type": ("suction", "spatula"),
    "task": ("visual_manipulation", "rotate", "rearrange", "sweep_without_exceeding"),
    "asset_type": ("scene", "object"),
    "key_name": ("dragged_obj_1", "base_obj", "scene", "container"),
    "obj_name": ("bowl", "L-shaped block", "three-sided rectangle", "pan", "letter R"),
    "texture_name": ("red swirl", "wooden", "green paisley", "tiger", "blue and purple stripe"),
    "furniture": ("lamp", "round_table", "desk", "drawer", "cabinet", "chair", "stool"),
    "initial_randomness": ("low", "med", "high"),
    "episode_task": ("single_object", "multi_object_2"),
    "length": ("S", "M", "L"),
    "size": ("S", "L"),
    "primitive": ("grasp", "place_on_fixture", "regrasp", "insert", "rotate"),
    "success_labeled_by": ("human", "program"),
    "disclaimer": ("Success was labelled by eye; a few labels may be wrong.",),
    "env_name": ("lab kitchen", "office counter"),
    "location_name": ("rs:loc:kitchen", "rs:loc:office"),
    "task_family_name": ("pick", "move near", "open drawer", "place into receptacle"),
    "collection_mode_name": ("teleop", "on-policy"),
    "data_type_name": ("robot demonstrations",),
    "objects_family_name": ("groceries", "kitchenware"),
}


def instruction(rng: np.random.Generator) -> str:
    """Something to do on a table."""
    template = _pick(rng, _TASKS)
    things = rng.permutation(len(_THINGS))[:2]
    return template.format(
        colour=_pick(rng, _COLOURS),
        thing=_THINGS[things[0]],
        other=_THINGS[things[1]],
        place=_pick(rng, _PLACES),
    )


def paraphrase(text: str, rng: np.random.Generator) -> str:
    """The same in other words."""
    return _pick(rng, ("please {}", "{}, carefully", "now {}", "{} when you are ready")).format(
        text
    )


def pushing(rng: np.random.Generator) -> str:
    """Something to do with the blocks of language_table, not always in English."""
    colours = rng.permutation(4)
    return _pick(rng, _PUSHES).format(
        colour=_COLOURS[colours[0]],
        second=_COLOURS[colours[1]],
        shape=_pick(rng, _SHAPES),
        other=_pick(rng, _SHAPES),
    )


def _pick(rng: np.random.Generator, options: tuple[_T, ...]) -> _T:
    return options[int(rng.integers(len(options)))]


# -- encoded images --------------------------------------------------------------------------------

_JPEG_QUALITY = 90  # with the scenes' texture and grain: bytes per frame like the real datasets
_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # by number of channels
_SUB, _UP, _AVERAGE, _PAETH = 1, 2, 3, 4


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


def encode_png(image: npt.NDArray[Any]) -> bytes:
    """Encode uint8 or uint16 [h, w] or [h, w, 1..4], RGB; the same bytes on every machine.

    OpenCV's encoder spends most of its time on choosing row filters. Real files mix the filters;
    taking them in turn costs a third of the time, and makes a decoder work through all of them.
    """
    pixels = image[..., None] if image.ndim == 2 else image
    height, width, channels = pixels.shape
    depth = 8 * pixels.itemsize
    header = struct.pack(">IIBBBBB", width, height, depth, _COLOUR_TYPES[channels], 0, 0, 0)
    rows = np.ascontiguousarray(pixels.astype(pixels.dtype.newbyteorder(">"), copy=False))
    rows = rows.view(np.uint8).reshape(height, -1)
    # Real images are mostly literals: Huffman coding alone loses little and is the fastest.
    deflate = zlib.compressobj(1, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY)
    filtered = _filtered(rows, channels * pixels.itemsize)
    data = deflate.compress(filtered.tobytes()) + deflate.flush()
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND")


def _filtered(rows: npt.NDArray[np.uint8], bpp: int) -> npt.NDArray[np.uint8]:
    """Each row as its filter type and the differences to its neighbours `bpp` bytes away."""
    height, width = rows.shape
    out = np.empty((height, 1 + width), np.uint8)
    out[:, 0] = np.resize([_SUB, _UP, _AVERAGE, _PAETH], height)

    sub = rows[0::4]  # row 0 is among these, so the others all have a row above
    out[0::4, 1 : 1 + bpp] = sub[:, :bpp]
    np.subtract(sub[:, bpp:], sub[:, :-bpp], out=out[0::4, 1 + bpp :])

    up = rows[1::4]
    np.subtract(up, rows[0::4][: len(up)], out=out[1::4, 1:])

    average, above = rows[2::4], rows[1::4]
    above = above[: len(average)]
    left = np.zeros_like(average)
    left[:, bpp:] = average[:, :-bpp]
    # floor((a + b) / 2) without leaving eight bits
    np.subtract(average, (left & above) + ((left ^ above) >> 1), out=out[2::4, 1:])

    paeth, above = rows[3::4], rows[2::4]
    above = above[: len(paeth)]
    np.subtract(paeth, _paeth(paeth, above, bpp), out=out[3::4, 1:])
    return out


def _paeth(
    row: npt.NDArray[np.uint8], above: npt.NDArray[np.uint8], bpp: int
) -> npt.NDArray[np.uint8]:
    """Of left, above and above-left the one nearest to left + above - above-left."""
    a, b, c = (np.zeros(row.shape, np.int16) for _ in range(3))
    a[:, bpp:] = row[:, :-bpp]
    b[:] = above
    c[:, bpp:] = above[:, :-bpp]
    to_left, to_above = np.abs(b - c), np.abs(a - c)
    to_corner = np.abs(a + b - 2 * c)
    nearest = np.where(to_above <= to_corner, b, c)
    nearest = np.where((to_left <= to_above) & (to_left <= to_corner), a, nearest)
    return nearest.astype(np.uint8)


def _chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
