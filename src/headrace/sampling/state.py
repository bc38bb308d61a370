"""The state of a sampler: how many draws were consumed, and of what.

The fingerprint is made by the loader: plain values of the mixture and, under "sources", a list of
plain dicts with a "name" each. This module only compares two of them and words the differences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError

__all__ = ["SamplerState", "differences", "digest"]

#: Raise it when the same draws and seed mean other samples, or the dict another thing.
VERSION = 1
_KEYS = ("version", "draws", "seed", "fingerprint")


@dataclass(frozen=True, slots=True)
class SamplerState:
    """Where a sequence of draws stands: all that a resumed run needs.

    >>> state = SamplerState(128, 0, {"sources": [{"name": "bridge", "offset": 5}]})
    >>> SamplerState.from_dict(state.to_dict()) == state
    True
    """

    draws: int  #: draws consumed by all ranks together
    seed: int  #: of the sampler
    fingerprint: Mapping[str, Any]  #: of the mixture and its catalogs: plain values

    def to_dict(self) -> dict[str, Any]:
        """Plain values that survive JSON, YAML and pickle."""
        fingerprint = _plain(self.fingerprint)
        return dict(zip(_KEYS, (VERSION, self.draws, self.seed, fingerprint), strict=True))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplerState:
        """The inverse of `to_dict`."""
        missing = [key for key in _KEYS if key not in values]
        if missing:
            raise UsageError(
                f"this is no loader state: {', '.join(missing)} missing among "
                f"{', '.join(map(str, values)) or 'nothing'}",
                remedy="Pass what `state_dict()` gave.",
            )
        if values["version"] != VERSION:
            raise UsageError(
                f"the loader state has version {values['version']!r}, not {VERSION}",
                remedy="Resume with the headrace that saved it, or start the sequence anew.",
            )
        for key in ("draws", "seed"):
            value = values[key]
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
                raise UsageError(
                    f"{key} is {value!r} in the loader state", remedy="It is a number from 0 on."
                )
        return cls(int(values["draws"]), int(values["seed"]), _plain(values["fingerprint"]))

    def check(self, seed: int, fingerprint: Mapping[str, Any]) -> None:
        """Raise, saying what changed, unless seed and fingerprint are those of this state."""
        changed = list(differences(self.fingerprint, fingerprint))
        if self.seed != seed:
            changed.insert(0, f"seed was {self.seed}, is {seed}")
        if changed:
            raise UsageError(
                f"the loader state belongs to another sequence: {'; '.join(changed)}",
                remedy="Resume with the data, options and seed it was saved with, or start anew.",
            )


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What differs between two fingerprints, in words.

    >>> was = {"sources": [{"name": "a", "offset": 5}, {"name": "b", "offset": 5}]}
    >>> now = {"sources": [{"name": "a", "offset": 3}]}
    >>> list(differences(was, now))
    ["source 'b' was removed", "source 'a': offset was 5, is 3"]
    """
    was, now = dict(_plain(was)), dict(_plain(now))
    old = {source["name"]: source for source in was.pop("sources", [])}
    new = {source["name"]: source for source in now.pop("sources", [])}
    yield from _changes("", was, now)
    yield from (f"source {name!r} was removed" for name in old if name not in new)
    yield from (f"source {name!r} was added" for name in new if name not in old)
    common = [name for name in old if name in new]
    if common != (order := [name for name in new if name in old]):
        yield f"the order of the sources was {', '.join(common)}, is {', '.join(order)}"
    for name in common:
        yield from _changes(f"source {name!r}: ", old[name], new[name])


def _changes(of: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in [*was, *(key for key in now if key not in was)]:
        if key not in was:
            yield f"{of}{key} was not given, is {now[key]!r}"
        elif key not in now:
            yield f"{of}{key} was {was[key]!r}, is not given"
        elif was[key] != now[key]:
            yield f"{of}{key} was {was[key]!r}, is {now[key]!r}"


def digest(counts: npt.ArrayLike) -> str:
    """A short name for a long list of numbers, to tell in a fingerprint that they changed.

    >>> digest([3, 0, 2])
    '72a64fc9bd9e'
    """
    data = np.ascontiguousarray(counts, "<i8").tobytes()
    return hashlib.blake2b(data, digest_size=6).hexdigest()


def _plain(value: Any) -> Any:
    """Tuples as lists, numpy scalars as numbers: what JSON would give back."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value
