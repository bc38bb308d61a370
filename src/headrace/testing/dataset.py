"""What every synthetic dataset offers: its schema, its splits, and the values of any episode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from headrace.testing import features as f
from headrace.testing.wire import Values

__all__ = ["SyntheticDataset", "image_features"]


class SyntheticDataset(Protocol):
    """A dataset that can be written, and whose every value is known without reading it back."""

    @property
    def name(self) -> str:
        """Short name; the registry's where there is one."""

    @property
    def dir(self) -> str:
        """Folder below the root, which is also the name in the shards."""

    @property
    def version(self) -> str:
        """Folder of the version."""

    @property
    def features(self) -> f.FeaturesDict:
        """The schema of an episode."""

    @property
    def dialect(self) -> f.Dialect:
        """How `features.json` is written."""

    def splits(self, episodes: int) -> dict[str, list[list[int]]]:
        """For every split the shards, for every shard the numbers of its episodes in order."""

    def steps(self, seed: int, episode: int, max_steps: int | None = None) -> int:
        """The length of an episode."""

    def episode(self, seed: int, episode: int, max_steps: int | None = None) -> Values:
        """All values of an episode, as they are handed to the writer (see `wire`)."""


def image_features(feature: f.Feature, key: str = "") -> Iterator[tuple[str, f.Image]]:
    """Every image of a feature tree with its key, in the order of the cameras' numbers."""
    match feature:
        case f.Image():
            yield key, feature
        case f.FeaturesDict(features):
            for name in sorted(features):
                yield from image_features(features[name], f"{key}/{name}" if key else name)
        case f.Steps(inner) | f.Sequence(inner):
            yield from image_features(inner, key)
        case _:
            return
