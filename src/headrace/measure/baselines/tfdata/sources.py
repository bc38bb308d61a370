"""What the pipelines are told of each source: exactly what headrace's own loader would deliver.

Fields, windows, splits and weights are resolved by the loader's own rooms, so both backends
deliver the same samples of the same mixture; the catalogs are used for nothing else here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.catalog.source import find_roles, missing_line
from headrace.config import Mixture, Source
from headrace.config.registry import known_dataset
from headrace.decoding.frame import check_camera
from headrace.errors import HeadraceError, SelectionError, UsageError
from headrace.formats.features import Field, parse_features
from headrace.loader.mixture import (
    OpenedSource,
    missing_roles,
    number_width,
    open_sources,
    window_steps,
)
from headrace.loader.options import WindowSpec
from headrace.measure.baselines.baseline import warn_remote
from headrace.measure.baselines.tfdata.options import Options
from headrace.reading.local import shared_files
from headrace.sampling.sampler import resolve_weights

_log = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class NumberField:
    """A float tensor of a step."""

    field: Field
    width: int  #: how many of its numbers are used


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """One source for TFDS."""

    name: str
    folder: str  #: of the prepared dataset, local or an address
    split: str
    offsets: tuple[int, ...]  #: steps of the frames after a window's start
    k: int  #: the last of them
    camera: Field
    action: NumberField | None
    state: NumberField | None
    language: Field | None
    robot: str | None  #: episode field that names it
    weight: float | None  #: as the mixture gives it
    samples: int  #: in one pass
    samples_per_episode: int  #: 0: all
    shards: tuple[str, ...]  #: file names in the order of episode ids; none: as TFDS lists them


@dataclass(frozen=True, slots=True)
class Shape:
    """What all samples of a mixture have in common."""

    size: tuple[int, int]  #: height and width of frames
    metadata: str  #: none, dataset or full
    action: int  #: width of actions, that of the widest source
    state: int  #: width of states
    seed: int

    @staticmethod
    def of(specs: Sequence[SourceSpec], size: tuple[int, int], metadata: str, seed: int) -> Shape:
        """As these sources need it."""
        return Shape(
            size=size,
            metadata=metadata,
            action=max((each.action.width for each in specs if each.action), default=0),
            state=max((each.state.width for each in specs if each.state), default=0),
            seed=seed % (1 << 31),  # what all of TensorFlow's random operations take
        )


def remote_sources(mixture: Mixture, options: Options) -> dict[str, str]:
    """Sources that are read over the network, with their addresses: `source: auto` takes those
    whose local copy is missing from the public bucket."""
    return {
        source.name: address
        for source in mixture.active
        if (address := _remote_address(mixture, source, options))
    }


def describe(mixture: Mixture, options: Options) -> list[SourceSpec]:
    """All sources whose weight is not 0 or less, in the mixture's order."""
    remote = remote_sources(mixture, options)
    warn_remote("tfdata", remote)
    local = tuple(source for source in mixture.active if source.name not in remote)
    opened = (
        open_sources(Mixture(local, mixture.root), WindowSpec(), shared_files()) if local else []
    )
    for notice in missing_roles(opened):
        _log.warning("%s", notice)
    found = {each.name: _of_catalog(each, options) for each in opened}
    for source in mixture.active:
        if source.name in remote:
            found[source.name] = _of_address(source, remote[source.name], options)
    specs = [found[source.name] for source in mixture.active]
    for each in specs:
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
    return specs


def shares(specs: Sequence[SourceSpec]) -> list[float]:
    """Each source's share of the draws."""
    return resolve_weights(
        [each.weight for each in specs],
        [each.samples for each in specs],
        [each.name for each in specs],
    )


def _remote_address(mixture: Mixture, source: Source, options: Options) -> str | None:
    """Where to read a source whose local copy is missing; None: read it where the mixture says."""
    if options.source != "auto" or source.path is not None or mixture.folder(source).exists():
        return None
    known = known_dataset(source.name)
    return f"{options.remote_root.rstrip('/')}/{known.dir}/{source.version or known.version}"


def _per_episode(source: Source | OpenedSource, options: Options) -> int:
    requested = options.sampling.samples_per_episode
    return source.samples_per_episode if requested is None else requested


def _of_catalog(source: OpenedSource, options: Options) -> SourceSpec:
    catalog = source.catalog
    try:
        episodes = source.episodes(source.split)
    except HeadraceError as error:
        raise error.within(dataset=source.name) from None
    per_episode = _per_episode(source, options)
    items = source.items(episodes, all_pairs=True)
    samples = items.length if not per_episode else per_episode * int((items.counts > 0).sum())
    return SourceSpec(
        name=source.name,
        folder=str(catalog.path),
        split=source.split,
        offsets=source.offsets,
        k=source.k,
        camera=source.camera,
        action=NumberField(source.action.field, source.action.dim) if source.action else None,
        state=NumberField(source.state.field, source.state.dim) if source.state else None,
        language=source.language.field if source.language else None,
        robot=source.robot.field.key if source.robot else None,
        weight=source.weight,
        samples=samples,
        samples_per_episode=per_episode,
        shards=tuple(Path(stamp.file).name for stamp in catalog.manifest.shards),
    )


def _of_address(source: Source, address: str, options: Options) -> SourceSpec:
    """From the published metadata alone: without a catalog the number of pairs is known only
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
        robot=source.robot,
    )
    try:
        camera = roles.main_camera()
    except HeadraceError as error:
        raise error.within(dataset=source.name) from None
    if missing := missing_line(roles.missing):
        _log.warning("%s: %s", source.name, missing)
    k = window_steps(source, roles)
    return SourceSpec(
        name=source.name,
        folder=address,
        split=source.split,
        offsets=WindowSpec().offsets(k),
        k=k,
        camera=camera,
        action=_numbers(roles.action, source.action_dim),
        state=_numbers(roles.state, source.state_dim),
        language=roles.language,
        robot=roles.robot.key if roles.robot else None,
        weight=source.weight,
        samples=known_dataset(source.name).pairs,
        samples_per_episode=_per_episode(source, options),
        shards=(),
    )


def _numbers(field: Field | None, dim: int | None) -> NumberField | None:
    return None if field is None else NumberField(field, number_width(field, dim))
