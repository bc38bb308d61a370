"""Sources and mixtures: frozen, checked when they are made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config.documents import TOP_KEYS, find_mixture, overridden, to_yaml
from headrace.config.registry import known_by_any_name
from headrace.config.typed import mapping, nearest, shown
from headrace.errors import UsageError

#: Lowest value of the numbers, and whether they must be whole.
_NUMBERS = {
    "offset": (1, True),
    "action_dim": (1, True),
    "state_dim": (1, True),
    "samples_per_episode": (0, True),
    "offset_seconds": (0, False),
    "hz": (0, False),
}


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset in a mixture. What is None is taken from the registry or found in the data.

    >>> Source("bridge", weight=0.03, split="train[:90%]").samples_per_episode
    0
    """

    name: str  #: of the registry, or any with a path
    weight: float | None = None  #: share of the draws; None: proportional; 0 or less: left out
    path: Path | None = None  #: folder of a dataset that the registry does not know
    version: str | None = None  #: TFDS version, where it is not the registry's
    camera: str | None = None  #: image field
    action: str | None = None  #: action field
    state: str | None = None  #: robot state field
    language: str | None = None  #: instruction field
    robot: str | None = None  #: field of the episode that names the robot
    action_dim: int | None = None  #: at most so many numbers of the action; None: all of them
    state_dim: int | None = None  #: at most so many numbers of the state; None: all of them
    split: str = "train"  #: episodes to train on
    val_split: str | None = None  #: episodes to validate on
    offset: int | None = None  #: steps from the first to the last frame of a window
    offset_seconds: float | None = None  #: the same in seconds, instead
    hz: float | None = None  #: control frequency, where the registry does not know it
    samples_per_episode: int = 0  #: per pass; 0: all

    def __post_init__(self) -> None:
        _check_name(self.name, "name")
        where = f"sources.{self.name}"
        values = {key: getattr(self, key) for key in SOURCE_KEYS}
        for key, value in _checked(values, where, SOURCE_KEYS).items():
            object.__setattr__(self, key, value)
        if self.offset is not None and self.offset_seconds is not None:
            raise UsageError(
                f"{where} has offset {self.offset} and offset_seconds {self.offset_seconds}",
                remedy="Give one of them.",
            )

    @property
    def active(self) -> bool:
        """Whether it takes part at all."""
        return self.weight is None or self.weight > 0


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sources with weights, and where those known by name lie.

    >>> mixture = Mixture.load("oxe29", ["root=/data/oxe", "sources.bridge.weight=0.1"])
    >>> mixture.folder(mixture.sources[1])
    PosixPath('/data/oxe/bridge/0.1.0')
    """

    sources: tuple[Source, ...]  #: as given, also those left out
    root: Path | None = None  #: folder of the datasets known by name

    def __post_init__(self) -> None:
        for given in self.sources:
            if not isinstance(given, Source):
                raise UsageError(
                    f"sources has {shown(given)}, not a Source",
                    remedy="Give hr.Source(name, ...); hr.Mixture.from_dict takes plain values.",
                )
        object.__setattr__(self, "sources", tuple(self.sources))
        object.__setattr__(self, "root", _path(self.root, "root"))
        if not self.sources:
            raise UsageError("sources is empty", remedy="Give at least one source.")
        names = [source.name for source in self.sources]
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                places = [f"sources[{i}]" for i, each in enumerate(names) if each == name]
                raise UsageError(
                    f"{' and '.join(places)} have the same name {name!r}",
                    remedy="Give each source a name of its own; a path says where it lies.",
                )
        if not self.active:
            raise UsageError(
                f"no source has a weight above 0 among {', '.join(names)}",
                remedy="Give at least one a weight above 0, or none for a proportional one.",
            )
        for source in self.active:
            self.folder(source)

    @property
    def active(self) -> tuple[Source, ...]:
        """The sources that take part: those whose weight is not 0 or less."""
        return tuple(source for source in self.sources if source.active)

    def folder(self, source: Source) -> Path:
        """Where a source lies: `root/dir/version` by the registry, or its path."""
        if source.path is not None:
            return source.path / source.version if source.version else source.path
        known = known_by_any_name().get(source.name)
        if known is None:
            raise UsageError(
                f"sources.{source.name} is not in the registry and has no path",
                remedy=f"{nearest(source.name, known_by_any_name())}Give it a path to describe a "
                "dataset of your own.",
            )
        if self.root is None:
            raise UsageError(
                f"sources.{source.name} is known by name, but there is no root",
                remedy="Give `root`, the folder above the datasets (root=/data/oxe), or its path.",
            )
        return self.root / known.dir / (source.version or known.version)

    def only(self, names: str | Sequence[str]) -> Mixture:
        """The mixture with these sources alone, as a list or as "a,b"; their weights stay.

        >>> mixture = Mixture.load("oxe29", ["root=/data/oxe"]).only("bridge,rt1")
        >>> [source.name for source in mixture.sources]
        ['bridge', 'rt1']
        """
        return dataclasses.replace(self, sources=_only(self.sources, names))

    @classmethod
    def load(cls, mixture: str | Path, overrides: Sequence[str] = ()) -> Mixture:
        """Read a YAML file, a packaged mixture ("oxe29") or YAML text ("{sources: [...]}").

        Overrides are `key.path=value`: `root=/data/oxe`, `sources.bridge.weight=0.1`,
        `defaults.offset=3`, `only=[bridge, rt1]`.
        """
        values, file = find_mixture(mixture)
        try:
            return cls.from_dict(overridden(values, overrides), file.parent if file else Path.cwd())
        except UsageError as error:
            raise error.within(file=str(file) if file else None) from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], folder: str | Path | None = None) -> Mixture:
        """From plain values as in the YAML; relative paths are relative to `folder`."""
        top = mapping(values, "the mixture", TOP_KEYS)
        defaults = mapping(top.get("defaults") or {}, "defaults", DEFAULT_KEYS)
        defaults = _checked(defaults, "defaults", DEFAULT_KEYS)
        listed = top.get("sources")
        if not isinstance(listed, (list, tuple)):
            raise UsageError(
                f"sources is {shown(listed)}, not a list",
                remedy="Write one `- {name: ..., weight: ...}` per source.",
            )
        sources = []
        for i, entry in enumerate(listed):
            named = isinstance(entry, Mapping) and isinstance(entry.get("name"), str)
            where = f"sources.{entry['name']}" if named else f"sources[{i}]"
            given = mapping(entry, where, SOURCE_KEYS)
            _check_name(given.get("name"), f"sources[{i}].name")
            merged = _merge(defaults, given)
            merged["path"] = _path(merged.get("path"), f"{where}.path", folder)
            sources.append(Source(**merged))
        if (only := top.get("only")) is not None:
            sources = list(_only(sources, only))
        return cls(tuple(sources), _path(top.get("root"), "root", folder))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the inverse of `from_dict`; defaults are written out where they matter."""
        sources = [
            {
                field.name: str(value) if isinstance(value, Path) else value
                for field in dataclasses.fields(source)
                if (value := getattr(source, field.name)) != field.default
            }
            for source in self.sources
        ]
        root = {} if self.root is None else {"root": str(self.root)}
        return {**root, "sources": sources}

    def to_yaml(self) -> str:
        """The mixture as a YAML file."""
        return to_yaml(self.to_dict())


def _only(sources: Sequence[Source], names: Any) -> tuple[Source, ...]:
    """The sources of these names, in the mixture's order."""
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    if not isinstance(wanted, list | tuple) or not all(isinstance(each, str) for each in wanted):
        raise UsageError(f"only is {shown(names)}", remedy="Give names of sources: bridge,rt1")
    known = [source.name for source in sources]
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"only: the mixture has no source {name!r}",
                remedy=f"{nearest(name, known)}Sources: {', '.join(known)}.",
            )
    return tuple(source for source in sources if source.name in wanted)


SOURCE_KEYS = tuple(field.name for field in dataclasses.fields(Source))
DEFAULT_KEYS = tuple(key for key in SOURCE_KEYS if key not in ("name", "path", "version"))


def _checked(values: Mapping[str, Any], where: str, keys: Iterable[str]) -> dict[str, Any]:
    """The values with their types: weights as floats or None, paths as paths."""
    found: dict[str, Any] = {}
    for key, value in mapping(values, where, keys).items():
        place = f"{where}.{key}"
        if key == "weight":
            found[key] = _weight(value, place)
        elif key == "path":
            found[key] = _path(value, place)
        elif key in _NUMBERS:
            found[key] = _number(key, value, place)
        elif value is None and key not in ("name", "split"):
            found[key] = None
        else:
            _check_text(value, place)
            found[key] = value
    return found


def _weight(value: Any, where: str) -> float | None:
    if value is None or value == "proportional":
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(
            f"{where} is {shown(value)}",
            remedy='Give a finite number (a share), or null or "proportional".',
        )
    return float(value)


def _number(key: str, value: Any, where: str) -> float | int | None:
    lowest, whole = _NUMBERS[key]
    if value is None:
        return 0 if key == "samples_per_episode" else None
    kinds = (int,) if whole else (int, float)
    good = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < lowest or (not whole and value == 0):
        wanted = f"a whole number from {lowest} upwards" if whole else "a number above 0"
        single = " One frame alone is frames='single' of the loader." if key == "offset" else ""
        raise UsageError(f"{where} is {shown(value)}", remedy=f"Give {wanted}.{single}")
    return value  # type: ignore[no-any-return]


def _path(value: Any, where: str, folder: str | Path | None = None) -> Path | None:
    """A path, relative ones below `folder`."""
    if value is None:
        return None
    if not isinstance(value, Path):
        _check_text(value, where)
        if "://" in value:
            raise UsageError(
                f"{where} is the address {value!r}", remedy="Give a folder of this machine."
            )
    path = Path(value).expanduser()
    return path if folder is None else Path(folder).absolute() / path


def _check_name(value: Any, where: str) -> None:
    """Complain of a source without a name."""
    if value is None:
        raise UsageError(f"{where} is missing", remedy="Every source has a name.")
    _check_text(value, where)


def _check_text(value: Any, where: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(
            f"{where} is {shown(value)}, not text",
            remedy="Give a text; quote what looks like a number.",
        )


def _merge(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A source's own values over the defaults; its offset drops a default in the other unit."""
    merged = {**defaults, **given}
    for one, other in (("offset", "offset_seconds"), ("offset_seconds", "offset")):
        if given.get(one) is not None and other not in given:
            merged.pop(other, None)
    return merged
