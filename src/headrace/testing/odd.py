"""The preset `odd`: small datasets with everything that is rare, legal and easy to get wrong.

Real TFDS reads all of them. Two legal schemas are left out because TFDS itself cannot read them
back inside steps: a tensor of shape (0,) and a sequence of fixed length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from headrace.testing import features as f
from headrace.testing import odd_content as content
from headrace.testing.picture import seeded
from headrace.testing.wire import Values

__all__ = ["OddDataset", "datasets"]

_Layout: TypeAlias = dict[str, list[list[int]]]
_StepMaker: TypeAlias = Callable[["content.Step"], Values]

_FLAGS: dict[str, f.Feature] = {"is_first": f.Scalar("bool"), "is_last": f.Scalar("bool")}


@dataclass(frozen=True)
class OddDataset:
    """A small fixed dataset; see `dataset.SyntheticDataset`. Its number of episodes is fixed."""

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
        features = dict(self.metadata or {"episode_metadata": content.PLAIN_METADATA})
        features["steps"] = f.Steps(f.FeaturesDict({**_FLAGS, **self.step_features}))
        return f.FeaturesDict(features)

    def splits(self, episodes: int = 0) -> _Layout:  # noqa: ARG002
        """The shards of every split; the number asked for is ignored."""
        return self.layout or {"train": [list(range(len(self.lengths)))]}

    def steps(self, seed: int, episode: int, max_steps: int | None = None) -> int:  # noqa: ARG002
        """The length of an episode."""
        steps = self.lengths[episode]
        return steps if max_steps is None else min(steps, max_steps)

    def episode(self, seed: int, episode: int, max_steps: int | None = None) -> Values:
        """All values of an episode."""
        count = self.steps(seed, episode, max_steps)
        rng = seeded(seed, self.name, episode)
        scenes = content.Scenes(self.name, self.number, seed, episode, count)
        rows = []
        for t in range(count):
            flags = {"is_first": t == 0, "is_last": t == count - 1}
            rows.append({**flags, **self.make_step(content.Step(rng, episode, t, scenes))})
        make = self.make_metadata or content.plain_metadata
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
        content.seen_step,
        lengths=(5, 1, 2, 0, 9, 1, 2, 3, 0, 6),
        layout={"test": [[9]], "train": [[0, 1], [], [2, 3, 4, 5], []], "val": [[], [6, 7], [8]]},
    )
    made = [
        lengths,
        OddDataset("odd_older_schema", 201, camera, content.seen_step, dialect="older"),
        OddDataset("odd_typed_schema", 202, camera, content.seen_step, dialect="typed"),
        OddDataset("odd_numbers", 203, content.NUMBERS, content.number_step, lengths=(4, 0, 6)),
        OddDataset("odd_shapes", 204, content.SHAPES, content.shape_step, lengths=(6, 0, 5)),
        OddDataset("odd_ragged", 205, content.RAGGED, content.ragged_step, lengths=(5, 0, 1, 7)),
        OddDataset("odd_texts", 206, content.TEXTS, content.text_step),
        OddDataset("odd_images", 207, content.IMAGES, content.image_step),
        OddDataset(
            "odd_missing_camera",
            208,
            content.CAMERAS,
            content.camera_step,
            lengths=(3, 4, 2, 5),
            metadata={"episode_metadata": content.CAMERA_METADATA},
            make_metadata=content.camera_metadata,
        ),
        OddDataset("odd_no_camera", 209, content.BLIND, content.blind_step),
        OddDataset(
            "odd_metadata",
            210,
            {"reward": f.Scalar("float32")},
            content.reward_step,
            metadata=content.METADATA,
            make_metadata=content.rich_metadata,
        ),
    ]
    return {dataset.name: dataset for dataset in made}
