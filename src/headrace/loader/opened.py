"""The sources of a mixture, opened: catalog, episodes, window and fields of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.catalog import Catalog
from headrace.catalog.shards import ProgressBar, ShardPool
from headrace.catalog.source import Roles, find_roles
from headrace.config import Mixture, Source
from headrace.errors import HeadraceError, SelectionError
from headrace.formats.features import Field
from headrace.loader.fields import NumberField, RobotNames, TextField
from headrace.loader.options import WindowSpec
from headrace.reading.local import LocalFiles
from headrace.sampling.items import SourceItems, steps_from_seconds, valid_starts
from headrace.sampling.sampler import digest

__all__ = ["OpenedSource", "number_width", "open_sources", "window_steps"]

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
    asked: float | None  #: weight as the mixture gives it; None: proportional
    split: str
    val_split: str | None
    samples_per_episode: int

    def steps(self, episodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Steps of episodes."""
        return self.catalog.steps[episodes].astype(np.int64)

    def episodes(self, split: str) -> NDArray[np.int64]:
        """Numbers of a split's episodes, short ones included."""
        return self.catalog.episodes(split)

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
    )
    if roles.camera is None:
        raise SelectionError(
            "the dataset has no camera", remedy="Name one in the mixture (`camera:`)"
        )
    k = window_steps(source, roles)
    known = roles.known
    return OpenedSource(
        name=source.name,
        catalog=catalog,
        camera=roles.camera,
        k=k,
        offsets=window.offsets(k),
        action=_numbers(catalog, roles.action, known.action_dim if known else 0),
        state=_numbers(catalog, roles.state, known.state_dim if known else 0),
        language=TextField(catalog, roles.language) if roles.language else None,
        robot=RobotNames(catalog, known.robot) if known and known.robot else None,
        asked=source.weight,
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


def number_width(field: Field | None, dim: int) -> int | None:
    """How many numbers of a role are used, where `dim` (or 0) is the registry's number.

    None for text and for tensors without a fixed size.
    """
    if field is None or field.is_string or field.width is None or field.ragged:
        return None
    return min(dim or field.width, field.width)


def _numbers(catalog: Catalog, field: Field | None, dim: int) -> NumberField | None:
    """A numeric role."""
    width = number_width(field, dim)
    return None if field is None or width is None else NumberField.of(catalog, field, width)
