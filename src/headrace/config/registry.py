"""The datasets known by name, read from `registry.toml` beside this module."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from headrace.config.typed import nearest
from headrace.errors import UnknownDatasetError


@dataclass(frozen=True, slots=True)
class KnownDataset:
    """What is known of a published dataset. Keys are relative to a step."""

    name: str  #: short name used in mixtures
    dir: str  #: folder below the root
    version: str  #: TFDS version folder
    camera: str  #: main camera
    size: tuple[int, int]  #: height and width of the main camera
    language: str  #: instruction
    offset: int  #: steps from the first to the second frame of a pair
    pairs: int  #: approximate number of pairs
    encoding: str | None = None  #: of the main camera, where the dataset states one
    language_codes: bool = False  #: the instruction is a tensor of Unicode code points
    action: str | None = None  #: action tensor or entry of the action dict
    state: str | None = None  #: robot state
    hz: float | None = None  #: control frequency
    robot: str | None = None  #: episode field that names the robot

    @property
    def folder(self) -> str:
        """`dir/version`, to be joined to a root."""
        return f"{self.dir}/{self.version}"


@cache
def known_datasets() -> dict[str, KnownDataset]:
    """All known datasets by name, in the order of the reference mixture."""
    text = resources.files("headrace.config").joinpath("registry.toml").read_text("utf-8")
    table = tomllib.loads(text)
    entries = [{**table["defaults"], **entry} for entry in table["dataset"]]
    return {
        entry["name"]: KnownDataset(**{**entry, "size": tuple(entry["size"])}) for entry in entries
    }


@cache
def known_by_any_name() -> dict[str, KnownDataset]:
    """The known datasets by short name and by folder name."""
    known = known_datasets()
    return {**{each.dir: each for each in known.values()}, **known}


def known_dataset(name: str) -> KnownDataset:
    """One known dataset by its short name or its folder name.

    >>> known_dataset("rt1").dir
    'fractal20220817_data'
    """
    found = known_by_any_name().get(name)
    if found is None:
        raise UnknownDatasetError(
            f"{name!r} is not in the registry",
            remedy=f"{nearest(name, known_by_any_name())}Known: {', '.join(known_datasets())}. "
            "Describe other datasets by path.",
        )
    return found


def known_for_folder(path: Path) -> KnownDataset | None:
    """The registry's entry for a `.../dir/version` folder, or None."""
    for known in known_datasets().values():
        if path.parent.name == known.dir and path.name == known.version:
            return known
    return None
