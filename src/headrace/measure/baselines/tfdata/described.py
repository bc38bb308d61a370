"""What the pipelines are told of each source: exactly what headrace's own loader would deliver.

Fields, windows, splits and weights are resolved by the loader's own rooms, so both backends
deliver the same samples of the same mixture; the catalogs are used for nothing else here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.catalog.registry import known_dataset
from headrace.catalog.source import find_roles
from headrace.config import Mixture, Source
from headrace.decoding.frame import check_camera
from headrace.errors import HeadraceError, SelectionError, UsageError
from headrace.formats.features import Field, parse_features
from headrace.loader.opened import (
    OpenedSource,
    WindowSpec,
    number_width,
    open_sources,
    window_steps,
)
from headrace.measure.baselines.tfdata.options import Options
from headrace.reading.local import shared_files
from headrace.sampling.sampler import resolve_weights

__all__ = ["Described", "Numbers", "describe", "shares"]


@dataclass(frozen=True, slots=True)
class Numbers:
    """A float tensor of a step."""

    field: Field
    width: int  #: how many of its numbers are used


@dataclass(frozen=True, slots=True)
class Described:
    """One source for TFDS."""

    name: str
    folder: str  #: of the prepared dataset, local or an address
    split: str
    offsets: tuple[int, ...]  #: steps of the frames after a window's start
    k: int  #: the last of them
    camera: Field
    action: Numbers | None
    state: Numbers | None
    language: Field | None
    robot: str | None  #: episode field that names it
    weight: float | None  #: as the mixture gives it
    samples: int  #: in one pass
    samples_per_episode: int  #: 0: all
    shards: tuple[str, ...]  #: file names in the order of episode ids; none: as TFDS lists them


def describe(mixture: Mixture, options: Options) -> list[Described]:
    """All sources whose weight is not 0 or less, in the mixture's order."""
    remote = {
        source.name: address
        for source in mixture.active
        if (address := _remote_address(mixture, source, options))
    }
    local = tuple(source for source in mixture.active if source.name not in remote)
    opened = (
        open_sources(Mixture(local, mixture.root), WindowSpec(), shared_files()) if local else []
    )
    found = {each.name: _of_catalog(each, options) for each in opened}
    for source in mixture.active:
        if source.name in remote:
            found[source.name] = _of_address(source, remote[source.name], options)
    described = [found[source.name] for source in mixture.active]
    for each in described:
        try:
            check_camera(each.camera.shape[-1], each.camera.dtype)
        except HeadraceError as error:
            raise error.within(dataset=each.name, field=each.camera.key) from None
        if each.samples == 0:
            raise UsageError(
                f"no sample in split {each.split!r}: no episode is longer than the offset {each.k}",
                remedy="Give this source a smaller offset, another split, or weight 0.",
                dataset=each.name,
            )
    return described


def shares(described: Sequence[Described]) -> list[float]:
    """Each source's share of the draws."""
    return resolve_weights(
        [each.weight for each in described],
        [each.samples for each in described],
        [each.name for each in described],
    )


def _remote_address(mixture: Mixture, source: Source, options: Options) -> str | None:
    """Where to read a source whose local copy is missing; None: read it where the mixture says."""
    if options.source != "auto" or source.path is not None or mixture.folder(source).exists():
        return None
    known = known_dataset(source.name)
    return f"{options.remote_root.rstrip('/')}/{known.dir}/{source.version or known.version}"


def _per_episode(source: Source | OpenedSource, options: Options) -> int:
    asked = options.sampling.samples_per_episode
    return source.samples_per_episode if asked is None else asked


def _of_catalog(source: OpenedSource, options: Options) -> Described:
    catalog = source.catalog
    known = catalog.roles.known
    try:
        episodes = source.episodes(source.split)
    except HeadraceError as error:
        raise error.within(dataset=source.name) from None
    per_episode = _per_episode(source, options)
    items = source.items(episodes, all_pairs=True)
    samples = items.length if not per_episode else per_episode * int((items.counts > 0).sum())
    return Described(
        name=source.name,
        folder=str(catalog.path),
        split=source.split,
        offsets=source.offsets,
        k=source.k,
        camera=source.camera,
        action=Numbers(source.action.field, source.action.dim) if source.action else None,
        state=Numbers(source.state.field, source.state.dim) if source.state else None,
        language=source.language.field if source.language else None,
        robot=known.robot if known and source.robot else None,
        weight=source.asked,
        samples=samples,
        samples_per_episode=per_episode,
        shards=tuple(Path(stamp.file).name for stamp in catalog.manifest.shards),
    )


def _of_address(source: Source, address: str, options: Options) -> Described:
    """From the published metadata alone: there is no catalog, and the number of pairs is known only
    roughly, which matters for proportional weights."""
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(f"{address}/features.json") as file:
            schema = parse_features(json.loads(file.read()))
    except tf.errors.OpError as error:
        raise SelectionError(
            f"there is neither a local copy of the dataset nor one at {address} ({error.message})",
            remedy="Set `root` of the mixture to the folder above the datasets, or remote_root",
            dataset=source.name,
        ) from None
    roles = find_roles(
        schema,
        Path(address),
        camera=source.camera,
        action=source.action,
        state=source.state,
        language=source.language,
    )
    known = known_dataset(source.name)
    if roles.camera is None:
        raise SelectionError("the dataset has no camera", dataset=source.name)
    k = window_steps(source, roles)
    action = number_width(roles.action, known.action_dim)
    state = number_width(roles.state, known.state_dim)
    return Described(
        name=source.name,
        folder=address,
        split=source.split,
        offsets=WindowSpec().offsets(k),
        k=k,
        camera=roles.camera,
        action=Numbers(roles.action, action) if roles.action and action else None,
        state=Numbers(roles.state, state) if roles.state and state else None,
        language=roles.language,
        robot=known.robot,
        weight=source.weight,
        samples=known.pairs,
        samples_per_episode=_per_episode(source, options),
        shards=(),
    )
