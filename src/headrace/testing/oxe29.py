"""The preset `oxe29`: the 29 datasets of the reference mixture, synthetic but true to form.

Folders, versions, keys, shapes, encodings, extra cameras and depth are those of the published
datasets (`oxe29.toml`); the content is a moving object (`picture`, `values`).
"""

from __future__ import annotations

import itertools
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from headrace.config.registry import KnownDataset, known_dataset, known_datasets
from headrace.testing import features as f
from headrace.testing.picture import seeded
from headrace.testing.values import EpisodeMaker, draw_path, instruction, pushing
from headrace.testing.writer import Values

_VARIATION = 0.4  # of an episode's length around the mean
_HOLDOUT = 8  # training episodes per held-out episode
_EPISODES_PER_SHARD = 64  # at most, once a split is larger than its default few shards


@dataclass(frozen=True)
class OxeDataset:
    """One dataset of the mixture; see `synth.SyntheticDataset`."""

    known: KnownDataset  #: the registry's entry
    number: int  #: place in the registry, in the pictures' tags
    features: f.FeaturesDict
    length: int  #: mean number of steps
    holdout: str | None = None  #: name of a second split
    dialect: f.Dialect = "current"
    plain: bool = False  #: pictures of the scene alone, see `plain_datasets`

    @property
    def name(self) -> str:
        """The registry's short name."""
        return self.known.name

    @property
    def dir(self) -> str:
        """Folder below the root."""
        return self.known.dir

    @property
    def version(self) -> str:
        """Folder of the version."""
        return self.known.version

    @property
    def cameras(self) -> dict[str, f.Image]:
        """Every camera by its step key, in the order of the tags' camera numbers."""
        keys = f.image_features(self.features)
        return {key.removeprefix("steps/"): image for key, image in keys}

    def splits(self, episodes: int) -> dict[str, list[list[int]]]:
        """Two to four shards for `train`; held-out episodes are numbered after the others."""
        few = 2 + self.number % 3
        shards = max(min(few, episodes), -(-episodes // _EPISODES_PER_SHARD))
        splits = {"train": _spread(range(episodes), shards)}
        if self.holdout:
            held = range(episodes, episodes + max(1, episodes // _HOLDOUT))
            splits[self.holdout] = _spread(held, max(1, len(held) // _EPISODES_PER_SHARD))
        return splits

    def steps(self, seed: int, episode: int, max_steps: int | None = None) -> int:
        """The length of an episode."""
        factor = seeded(seed, self.name, episode, 6).uniform(1 - _VARIATION, 1 + _VARIATION)
        steps = max(1, round(self.length * factor))
        return steps if max_steps is None else min(steps, max_steps)

    def episode(self, seed: int, episode: int, max_steps: int | None = None) -> Values:
        """All values of an episode."""
        words = seeded(seed, self.name, episode, 7)
        steps = self.steps(seed, episode, max_steps)
        maker = EpisodeMaker(
            features=self.features,
            name=self.name,
            number=self.number,
            seed=seed,
            episode=episode,
            path=draw_path(seeded(seed, self.name, episode, 8), steps),
            instruction=pushing(words) if self.known.language_codes else instruction(words),
            state=self.known.state,
            action=self.known.action,
            codes=self.known.language if self.known.language_codes else None,
            plain=self.plain,
        )
        return maker.make()


@cache
def datasets() -> dict[str, OxeDataset]:
    """The 29 datasets by the registry's names, in its order."""
    text = resources.files("headrace.testing").joinpath("oxe29.toml").read_text("utf-8")
    table = tomllib.loads(text)
    bases = table.pop("base")
    made = {}
    for number, known in enumerate(known_datasets().values()):
        entry = table[known.name]
        schema = _merged(bases.get(entry.get("extends"), {}), entry["features"])
        made[known.name] = OxeDataset(
            known, number, f.parse_features(schema), entry["length"], entry.get("holdout")
        )
    return made


@cache
def plain_datasets() -> dict[str, OxeDataset]:
    """The same datasets with pictures to learn from: no label, no tag, no grain, even light.

    A label that counts and a tag that flickers are most of what changes between two small frames,
    and no action explains them. The object that moves is larger too.
    """
    return {name: replace(known, plain=True) for name, known in datasets().items()}


def dataset(name: str) -> OxeDataset:
    """One of the datasets by its short name or its folder."""
    return datasets()[known_dataset(name).name]


def episode_values(name: str, seed: int, episode: int, max_steps: int | None = None) -> Values:
    """The true values of every field of an episode, as they were handed to the writer."""
    return dataset(name).episode(seed, episode, max_steps)


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    both = {**base, **own}
    for name in base.keys() & own.keys():
        both[name] = _merged(base[name], own[name])
    return both


def _spread(episodes: range, shards: int) -> list[list[int]]:
    """Consecutive runs of nearly equal length, as TFDS cuts a split into shards."""
    count = len(episodes)
    cuts = [round(count * shard / shards) for shard in range(shards + 1)]
    return [list(episodes[a:b]) for a, b in itertools.pairwise(cuts)]
