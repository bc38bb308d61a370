"""What a loader can be told: the only list of its options, with their defaults and checks.

`Loader`, `TorchLoader`, the Lightning data module, Grain, the benchmark, studies and the training
recipes all take these options or their fields. An option is added here and nowhere else.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from headrace.config.typed import check_types, nearest, shown
from headrace.decoding.resize import Filter
from headrace.engine.machine import allowed_memory, rank_and_world_size_of_launcher
from headrace.errors import UsageError
from headrace.sampling.items import WindowMode, frame_offsets

ActionMode: TypeAlias = Literal["first", "sum"]
Metadata: TypeAlias = Literal["none", "dataset", "full"]
OnError: TypeAlias = Literal["raise", "skip"]
Shuffle: TypeAlias = Literal["exact", "local", "none"]

#: Memory to leave free, where it is at most an eighth of what the machine or container has.
KEEP_FREE = 1 << 30

_Class = TypeVar("_Class", bound=type)
_TAB = "    "

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def option(default: Any, meaning: str) -> Any:
    """A field of options, with what help and the reference say of it."""
    return field(default=default, metadata={"meaning": meaning})


def options_of(kind: type) -> list[tuple[str, str, str, str]]:
    """Name, type, default and meaning of every option of a dataclass."""
    hints = get_type_hints(kind)
    return [
        (each.name, _type_name(hints[each.name]), _value_name(each.default), meaning)
        for each in fields(kind)
        if (meaning := each.metadata.get("meaning"))
    ]


def options_table(kind: type) -> str:
    """The options as a table in Markdown, for the reference."""
    rows = (
        f"| `{name}` | {type_name} | `{default}` | {meaning} |"
        for name, type_name, default, meaning in options_of(kind)
    )
    return "\n".join(["| option | type | default | meaning |", "|---|---|---|---|", *rows])


def with_options(*kinds: type) -> Callable[[_Class], _Class]:
    """A class decorator that lists options behind the docstring, for `help`; by default its own."""

    def add(documented: _Class) -> _Class:
        if documented.__doc__:  # python -OO has none
            listed = "\n".join(
                f"{name}: {type_name} = {default}\n" + textwrap.indent(textwrap.fill(meaning), _TAB)
                for kind in kinds or (documented,)
                for name, type_name, default, meaning in options_of(kind)
            )
            text = inspect.cleandoc(documented.__doc__)
            documented.__doc__ = f"{text}\n\nOptions:\n\n{listed}\n"
        return documented

    return add


def _type_name(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_type_name, get_args(hint)))
    if get_origin(hint) is Literal:
        return " or ".join(map(_value_name, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"({', '.join(map(_type_name, get_args(hint)))})"
    return "None" if hint is NoneType else str(hint.__name__)


def _value_name(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """Which frames of a window are taken; `k` is the offset of a source, in steps.

    >>> WindowSpec("stride", stride=2).offsets(5)
    (0, 2, 4, 5)
    """

    mode: WindowMode = "endpoints"
    stride: int | None = None
    n: int | None = None

    def offsets(self, k: int) -> tuple[int, ...]:
        """Steps of the frames after the window's start."""
        return frame_offsets(self.mode, k, self.stride, self.n)

    @property
    def single(self) -> bool:
        """Whether it is one frame, at any step of an episode: offsets do not matter."""
        return self.mode == "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """The options of every loader."""

    batch_size: int = option(64, "Samples in a batch of this rank.")
    seed: int = option(0, "Key of the shuffle: the same seed gives the same sequence of samples.")
    workers: int | None = option(
        None,
        "Threads that load, each with a worker process of its own once it has worked for 0.2 s. "
        "None: one for each CPU that this process may use; ranks of one node share them. 0: "
        "threads of this process alone, without worker processes: for debugging, and for programs "
        "that must not start any.",
    )
    memory: int | str | None = option(
        None,
        "Memory for everything in flight (batches, reading and decoding, worker processes): "
        'bytes, or a text such as "2GiB". None: what is needed, at most a quarter of what is '
        "available, which ranks of one node share.",
    )
    keep_free: int | str | None = option(
        None,
        "Memory to leave to others, in the same form: below it, prefetching shrinks to a minimum. "
        "None: 1 GiB, or an eighth of what the machine or container has where that is less.",
    )
    rank: int | None = option(
        None,
        "This process among those that train together. None: as the launcher says (torchrun, srun, "
        "Lightning), else 0.",
    )
    world_size: int | None = option(
        None, "How many processes train together; given where `rank` is given."
    )

    def __post_init__(self) -> None:
        check_types(self)
        at_least("batch_size", self.batch_size, 1)
        if self.workers is not None:
            at_least("workers", self.workers, 0)
        for size in (self.memory, self.keep_free):
            if size is not None:
                parse_size(size)
        if self.rank is not None or self.world_size is not None:
            rank_and_world_size(self.rank, self.world_size)

    @property
    def memory_bytes(self) -> int | None:
        """`memory` as a number."""
        return None if self.memory is None else parse_size(self.memory)

    @property
    def keep_free_bytes(self) -> int:
        """`keep_free` as a number, with its default."""
        if self.keep_free is None:
            return min(KEEP_FREE, allowed_memory() // 8)
        return parse_size(self.keep_free)


@with_options()
@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions(SharedOptions):
    """The options of a loader of mixtures.

    >>> LoaderOptions(batch_size=32, image_size=(240, 320)).size
    (240, 320)
    """

    image_size: int | tuple[int, int] = option(
        256,
        "Size of the frames: (height, width), or one number for both. Frames are stretched to it: "
        "the whole picture stays visible, and its aspect ratio changes.",
    )
    frames: WindowSpec | WindowMode = option(
        "endpoints",
        'Frames of a window: "endpoints" (t and t+k, k being the `offset` of the source in the '
        'mixture), "single" (t alone, at every step: behaviour cloning, with an `action_chunk`), '
        '"all" (t to t+k), or a `WindowSpec` (every n-th, or n evenly).',
    )
    metadata: Metadata = option(
        "full",
        'What comes with the frames: "none", "dataset" (which source each sample is of), or '
        '"full" (action, state, texts, episode and step as well).',
    )
    action: ActionMode = option(
        "first",
        'What `action` is: "first", the action at t; or "sum", the sum of the actions from t to '
        "the last frame of the window, which is the whole movement where actions are differences, "
        "and means nothing where they are positions.",
    )
    action_chunk: int | None = option(
        None,
        "C: actions of a sample one by one, from t on, with `action_is_pad` beyond the episode's "
        "end; `action` is then [B, C, A]. None: one, as `action` says.",
    )
    resize: Filter = option(
        "bilinear", "How frames are resized: as TensorFlow's method of that name."
    )
    on_error: OnError = option(
        "raise",
        'What happens to a damaged sample: it is raised, or replaced ("skip") by another one of '
        "its source, the same for any number of workers.",
    )
    max_errors: int | None = option(
        None,
        'With on_error="skip": damaged frames that may be met, each counted once, before the run '
        "ends with an error. None: 100, or one in 1,000 frames of the mixture where that is more.",
    )

    def __post_init__(self) -> None:
        SharedOptions.__post_init__(self)
        for side in self.size:
            at_least("image_size", side, 1)
        if self.action_chunk is not None:
            at_least("action_chunk", self.action_chunk, 1)
            if self.action != "first":
                raise UsageError(
                    f"action is {self.action!r} and action_chunk is {self.action_chunk}",
                    remedy="Leave one of them out: a chunk has its actions one by one",
                )
        if self.action == "sum" and self.window.single:
            raise UsageError(
                "action is 'sum' and frames is 'single': there is no second frame to sum up to",
                remedy="Use action='first', or action_chunk for the actions one by one",
            )
        if self.max_errors is not None:
            at_least("max_errors", self.max_errors, 0)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the frames."""
        given = self.image_size
        return (given, given) if isinstance(given, int) else (given[0], given[1])

    @property
    def window(self) -> WindowSpec:
        """`frames` as a `WindowSpec`."""
        return self.frames if isinstance(self.frames, WindowSpec) else WindowSpec(self.frames)

    def most_damaged(self, frames: int) -> int | None:
        """Damaged frames of so many that may be passed over; None: the first one is raised."""
        if self.on_error == "raise":
            return None
        return max(100, frames // 1000) if self.max_errors is None else self.max_errors


@with_options()
@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions(SharedOptions):
    """The options of a loader of rows."""

    shuffle: Shuffle = option(
        "exact",
        'Order of the windows: "exact" (all of them), "local" (within a few row groups at a time) '
        'or "none" (as they are stored).',
    )
    open_pieces: int = option(
        8, "Pieces of the files that a local shuffle has open: more of them mix further."
    )

    def __post_init__(self) -> None:
        SharedOptions.__post_init__(self)
        at_least("open_pieces", self.open_pieces, 1)


_Options = TypeVar("_Options", bound=SharedOptions)


class SharedFields(TypedDict, total=False):
    """The fields of `SharedOptions` as keywords, for editors; a test compares the two."""

    batch_size: int
    seed: int
    workers: int | None
    memory: int | str | None
    keep_free: int | str | None
    rank: int | None
    world_size: int | None


class LoaderFields(SharedFields, total=False):
    """The fields of `LoaderOptions` as keywords."""

    image_size: int | tuple[int, int]
    frames: WindowSpec | WindowMode
    metadata: Metadata
    action: ActionMode
    action_chunk: int | None
    resize: Filter
    on_error: OnError
    max_errors: int | None


class RowFields(SharedFields, total=False):
    """The fields of `RowOptions` as keywords."""

    shuffle: Shuffle
    open_pieces: int


def changed_options(
    kind: type[_Options], options: _Options | None, changes: Mapping[str, Any], *more: type
) -> _Options:
    """Options, or the defaults, with some fields changed; an unknown field is an error.

    `more` are the other options of the class that is given them, which the error lists as well.
    """
    options = kind() if options is None else options
    if not isinstance(options, kind):
        raise UsageError(
            f"the options are {shown(options)}",
            remedy=f"Give hr.{kind.__name__}(...), or its fields by name: batch_size=32",
        )
    known = [field.name for each in (*more, type(options)) for field in fields(each)]
    for name in changes:
        if name not in known:
            raise UsageError(
                f"a loader has no option {name!r}",
                remedy=f"{nearest(name, known)}There are {', '.join(known)}",
            )
    return replace(options, **changes)


def parse_size(size: int | str) -> int:
    """A size in bytes, as a number or with a unit.

    >>> parse_size("256MiB"), parse_size("1.5GB")
    (268435456, 1500000000)
    """
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*([\d.]+)\s*([kmg]i?|)b?\s*", size.lower())
    if match is None:
        raise UsageError(f"{size!r} is not a size", remedy="Write for example 512MiB or 2GB")
    return int(float(match[1]) * _UNITS[match[2]])


def rank_and_world_size(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """This process among its peers: as given, else as its launcher says."""
    if (rank is None) != (world_size is None):
        raise UsageError(
            f"rank is {rank} and world_size is {world_size}",
            remedy="Give both, or neither of them",
        )
    if rank is None or world_size is None:
        rank, world_size = rank_and_world_size_of_launcher()
    if not 0 <= rank < world_size:
        raise UsageError(
            f"rank {rank} does not exist in a world of {world_size}",
            remedy=f"Ranks run from 0 to {world_size - 1}: look at `rank` and `world_size`, or at "
            "RANK and WORLD_SIZE in the environment",
        )
    return rank, world_size


def at_least(name: str, value: Any, least: int) -> None:
    """Complain of what is not a whole number from `least` upwards."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name} is {value!r}", remedy=f"Give a whole number from {least} upwards")
