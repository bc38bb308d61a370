"""The sources of a mixture, opened: catalog, episodes, window and fields of each, and their order.

The fields that nearly every dataset uses have a place in the file that can be computed for many
samples at once: floats without encoding (`start + 4 * width * t`), and texts, whose steps are
usually all equal. Others are read through the catalog, which is the plain twin of these.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.catalog import Catalog
from headrace.catalog.manifest import UNCHECKED, some_of
from headrace.catalog.shards import ProgressBar, ShardPool
from headrace.catalog.source import Roles, find_roles, missing_line
from headrace.config import Mixture, Source
from headrace.decoding.frame import check_camera
from headrace.errors import HeadraceError, SplitError, UsageError
from headrace.formats.example import blob_ends, blob_place
from headrace.formats.extract import FIXED, decode_varints, parts_of
from headrace.formats.features import Field
from headrace.loader.options import LoaderOptions, WindowSpec, rank_and_world_size
from headrace.reading.local import LocalFiles
from headrace.sampling.items import SourceItems, steps_from_seconds, valid_starts
from headrace.sampling.sampler import Sampler, digest, resolve_weights

_log = logging.getLogger("headrace")

Ints = NDArray[np.int64]

_DEFAULT_OFFSET = 5  # steps; what the reference mixture uses where it says nothing else


@dataclass(frozen=True, eq=False)
class OpenedSource:
    """One source, ready to be drawn from."""

    name: str
    catalog: Catalog
    camera: Field
    k: int  #: steps from the first to the last frame of a window
    offsets: tuple[int, ...]  #: steps of all frames of a window after its start
    action: NumberField | None
    state: NumberField | None
    language: TextField | None
    robot: RobotNames | None  #: where episodes name it
    missing: str | None  #: roles whose named fields the files do not have
    weight: float | None  #: as the mixture gives it; None: proportional
    split: str
    val_split: str | None
    samples_per_episode: int

    def steps(self, episodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Steps of episodes."""
        return self.catalog.steps[episodes].astype(np.int64)

    def episodes(self, split: str) -> NDArray[np.int64]:
        """Numbers of a split's episodes, short ones included."""
        try:
            return self.catalog.episodes(split)
        except HeadraceError as error:
            raise error.within(dataset=self.name) from None

    def items(self, episodes: NDArray[np.int64], *, all_pairs: bool = False) -> SourceItems:
        """What can be drawn from these episodes."""
        counts = valid_starts(self.steps(episodes), self.k)
        return SourceItems(counts, 0 if all_pairs else self.samples_per_episode)

    def fingerprint(self, episodes: NDArray[np.int64]) -> dict[str, Any]:
        """What the order of samples depends on, for comparing states."""
        counts = valid_starts(self.steps(episodes), self.k)
        return {
            "dataset": f"{self.catalog.name} {self.catalog.version}",
            "metadata": self.catalog.manifest.metadata_hash[:16],
            "split": self.split,
            "episodes": len(episodes),
            "pairs": int(counts.sum()),
            "lengths": digest(counts),
            "camera": self.camera.key,
            "frames": list(self.offsets),
            "samples_per_episode": self.samples_per_episode,
        }


class OpenedMixture:
    """What can be drawn from a mixture, and in which order."""

    def __init__(self, mixture: Mixture | str | Path, options: LoaderOptions, files: LocalFiles):
        if not isinstance(mixture, Mixture):
            mixture = Mixture.load(mixture)
        self.options = options
        self.sources = open_sources(mixture, options.window, files)
        self._check()
        self.names = tuple(source.name for source in self.sources)
        self.episodes = [source.episodes(source.split) for source in self.sources]
        self.items = [s.items(e) for s, e in zip(self.sources, self.episodes, strict=True)]
        weights = resolve_weights(
            [source.weight for source in self.sources],
            [items.length for items in self.items],
            self.names,
        )
        self.weights = weights
        self.sampler = Sampler(weights, self.items, options.seed, self.names)
        #: Sources whose frames have no checksums.
        self.unchecked = tuple(s.name for s in self.sources if not s.catalog.checksums)
        if rank_and_world_size(options.rank, options.world_size)[0] == 0:
            for notice in self.notices(mixture):
                _log.warning("%s", notice)

    def notices(self, mixture: Mixture) -> Iterator[str]:
        """What a user should know of the mixture and may not expect, a line each."""
        yield from missing_roles(self.sources)
        if self.unchecked:
            yield f"{UNCHECKED}: {some_of(self.unchecked)}"
        dropped = [source.name for source in mixture.sources if not source.active]
        if dropped:
            yield f"left out, because the weight is 0 or less: {', '.join(dropped)}"
        steps = [s.steps(e) for s, e in zip(self.sources, self.episodes, strict=True)]
        starts = sum(int(items.counts.sum()) for items in self.items)
        if starts == (total := sum(int(each.sum()) for each in steps)):
            return
        low, high = min(s.k for s in self.sources), max(s.k for s in self.sources)
        short = [
            f"{many:,} of {name} ({many / len(items.counts):.1%})"
            for name, items in zip(self.names, self.items, strict=True)
            if (many := int((items.counts == 0).sum()))
        ]
        yield (
            f"offset {low if low == high else f'{low} to {high}'}: {1 - starts / total:.1%} of the "
            "steps start no window, because the episode ends before its last frame"
            + (f"; episodes that are too short: {', '.join(short[:5])}" if short else "")
            + (f" and those of {len(short) - 5} other sources" if len(short) > 5 else "")
            + " (frames='single' uses every step)"
        )

    def fingerprint(self) -> dict[str, Any]:
        """Everything that the sequence of samples depends on, beside the seed."""
        return {
            "sources": [
                {"name": source.name, "places": int(places), **source.fingerprint(episodes)}
                for source, places, episodes in zip(
                    self.sources, self.sampler.shares.places, self.episodes, strict=True
                )
            ]
        }

    def _check(self) -> None:
        """All sources fill frames, and the same number of them."""
        for source in self.sources:
            try:
                check_camera(source.camera.shape[-1], source.camera.dtype)
            except HeadraceError as error:
                raise error.within(dataset=source.name, field=source.camera.key) from None
        counts = {len(source.offsets): source.name for source in self.sources}
        if len(counts) > 1:
            listed = ", ".join(f"{name} {count}" for count, name in counts.items())
            raise UsageError(
                f"windows have different numbers of frames: {listed}",
                remedy="With different offsets use frames='endpoints', or fixed_n for a fixed "
                "number",
            )


def missing_roles(sources: Iterable[OpenedSource]) -> Iterator[str]:
    """A line for each source whose files do not have all fields that are named for it."""
    return (f"{source.name}: {source.missing}" for source in sources if source.missing)


_AnySource = TypeVar("_AnySource", Source, OpenedSource)


def to_validate(sources: Sequence[_AnySource]) -> list[_AnySource]:
    """The sources with a validation split; tells which have none. It is an error if none has."""
    without = [source.name for source in sources if source.val_split is None]
    if len(without) == len(sources):
        raise SplitError(
            "no source has a validation split",
            remedy="Give `val_split` in the mixture, for a source or in `defaults`",
        )
    if without:
        _log.warning("left out of validation, without a `val_split`: %s", ", ".join(without))
    return [source for source in sources if source.val_split is not None]


def open_sources(
    mixture: Mixture, window: WindowSpec, files: LocalFiles, *, on_damage: Any = "raise"
) -> list[OpenedSource]:
    """Open the catalogs of all sources whose weight is not 0 or less; build what is missing."""
    opened = []
    with ShardPool() as pool, ProgressBar() as progress:
        for source in mixture.active:
            try:
                catalog = Catalog.open(
                    mixture.folder(source),
                    pool=pool,
                    progress=progress,
                    files=files,
                    on_damage=on_damage,
                )
                opened.append(_open(source, catalog, window))
            except HeadraceError as error:
                raise error.within(dataset=source.name) from None
    return opened


def _open(source: Source, catalog: Catalog, window: WindowSpec) -> OpenedSource:
    roles = find_roles(
        catalog.schema,
        Path(catalog.path),
        camera=source.camera,
        action=source.action,
        state=source.state,
        language=source.language,
        robot=source.robot,
    )
    camera = roles.main_camera()
    k = 0 if window.single else window_steps(source, roles)
    return OpenedSource(
        name=source.name,
        catalog=catalog,
        camera=camera,
        k=k,
        offsets=window.offsets(k),
        action=_numbers(catalog, roles.action, source.action_dim),
        state=_numbers(catalog, roles.state, source.state_dim),
        language=TextField(catalog, roles.language) if roles.language else None,
        robot=RobotNames(catalog, roles.robot) if roles.robot else None,
        missing=missing_line(roles.missing),
        weight=source.weight,
        split=source.split,
        val_split=source.val_split,
        samples_per_episode=source.samples_per_episode,
    )


def window_steps(source: Source, roles: Roles) -> int:
    """The window's length in steps: as given, in steps or seconds, else the registry's."""
    if source.offset is not None:
        return source.offset
    if source.offset_seconds is not None:
        hz = source.hz if source.hz is not None else roles.known.hz if roles.known else None
        return steps_from_seconds(source.offset_seconds, hz)
    return roles.known.offset if roles.known else _DEFAULT_OFFSET


def _numbers(catalog: Catalog, field: Field | None, dim: int | None) -> NumberField | None:
    return None if field is None else NumberField.of(catalog, field, number_width(field, dim))


def number_width(field: Field, dim: int | None) -> int:
    """How many numbers of a field are delivered: all, or the first `dim` of them."""
    width = field.width or 0
    return width if dim is None else min(dim, width)


# -- fields ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NumberField:
    """Numbers of a step, of which the first `dim` are delivered: all, unless a mixture cuts."""

    catalog: Catalog
    field: Field
    dim: int
    step_bytes: int = 0  #: bytes a step has in the file; 0 if that is not a fixed place

    @staticmethod
    def of(catalog: Catalog, field: Field, dim: int) -> NumberField:
        """The field with what follows from how it is stored."""
        part = parts_of(field)[0]
        return NumberField(catalog, field, dim, part.step_bytes if part.storage == FIXED else 0)

    def offsets(self, episodes: Ints, steps: Ints) -> Ints:
        """Where each step's numbers stand in its file; -1: ask the catalog."""
        if not self.step_bytes:
            return np.full(len(episodes), -1)
        return self.catalog.fixed_places(self.field, episodes, steps)

    def read(self, fd: int, offset: int, count: int, episode: int, t: int) -> NDArray[np.float32]:
        """[count, dim] from step t on."""
        if offset < 0:
            values = self.catalog.read(episode, self.field.key, t, t + count)
            flat = np.asarray(values, np.float32).reshape(count, -1)
        else:
            size = count * self.step_bytes
            data = os.pread(fd, size, offset)
            if len(data) < size:  # a short read: the catalog asks again and knows what to say
                return self.read(fd, -1, count, episode, t)
            flat = np.frombuffer(data, "<f4").reshape(count, -1)
        return flat[:, : self.dim]


@dataclass(frozen=True)
class TextField:
    """An instruction: text, or Unicode code points."""

    catalog: Catalog
    field: Field

    def spans(self, episodes: Ints) -> tuple[Ints, Ints]:
        """Where each episode's texts stand in its file, and how many bytes they are."""
        return self.catalog.span_places(self.field, episodes)

    def read(self, fd: int, offset: int, size: int, episode: int, steps: int, t: int) -> str:
        """The text at step t."""
        if not size:
            return self.catalog.instruction(episode, t, self.field.key)
        width = self.field.width or 0
        text: str | bytes | None
        if self.field.is_string:
            text = _text_at(os.pread(fd, size, offset), steps, t, size)
        elif width and size == steps * width:  # every code point takes a byte
            text = os.pread(fd, width, offset + t * width).replace(b"\0", b"")
        else:
            text = _codes_of_all(os.pread(fd, size, offset), steps, width, size)
        if text is None:
            return self.catalog.instruction(episode, t, self.field.key)
        return text if isinstance(text, str) else text.decode("utf-8", "replace")


def _codes_of_all(data: bytes, steps: int, width: int, size: int) -> str | None:
    """The text that all steps share, as code points of several bytes; None if they do not."""
    unit = data[: size // steps]
    if len(data) < size or unit * steps != data:
        return None
    codes = decode_varints(unit)
    if len(codes) != width or codes.min() < 0 or codes.max() >= 0xD800:  # negative, or no text
        return None
    return codes[codes > 0].astype("<u4").tobytes().decode("utf-32-le")


def _text_at(data: bytes, steps: int, t: int, size: int) -> bytes | None:
    """The t-th of `steps` texts; None if there are fewer."""
    if len(data) < size:
        return None
    if size % steps == 0:  # most episodes have one instruction, repeated
        unit = data[: size // steps]
        offset, length = blob_place(0, len(unit))
        if unit * steps == data and _length_prefix(unit) == length:
            return unit[offset:]
    ends = blob_ends(data, 0, size)
    if len(ends) != steps:
        return None
    offset, length = blob_place(ends[t - 1] if t else 0, ends[t])
    return data[offset : offset + length]


def _length_prefix(unit: bytes) -> int:
    """The length that stands at the start of an element; -1 if it takes more than two bytes."""
    if len(unit) < 2 or unit[0] != 0x0A:
        return -1
    if unit[1] < 0x80:
        return unit[1]
    if len(unit) > 2 and unit[2] < 0x80:
        return (unit[1] & 0x7F) | unit[2] << 7
    return -1


class RobotNames:
    """The robot that an episode names; there are few episodes next to samples, so it is kept."""

    def __init__(self, catalog: Catalog, field: Field) -> None:
        self._catalog, self.field = catalog, field
        self._known: dict[int, str] = {}

    def __getitem__(self, episode: int) -> str:
        name = self._known.get(episode)
        if name is None:
            value = bytes(self._catalog.read(episode, self.field.key))
            name = self._known[episode] = sys.intern(value.decode("utf-8", "replace"))
        return name
