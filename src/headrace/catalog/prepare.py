"""Making sure that a dataset has a catalog that is true: find it, or build what is missing."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from headrace.catalog.build import build, changed_shards
from headrace.catalog.location import candidates, is_writable
from headrace.catalog.manifest import LEVELS, Manifest, read_manifest
from headrace.catalog.pool import ShardPool
from headrace.catalog.progress import BuildProgress, ProgressBar
from headrace.catalog.table import EpisodeTable
from headrace.errors import CatalogError
from headrace.formats.rlds import RldsDataset, read_dataset

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """A dataset and the catalog that is true for it."""

    dataset: RldsDataset
    folder: Path  #: where the catalog lies
    manifest: Manifest
    table: EpisodeTable


def prepare(
    path: str | Path,
    *,
    level: str,
    quarantine: bool,
    cache: bool,
    workers: int | None,
    progress: BuildProgress | None,
    pool: ShardPool | None,
) -> Prepared:
    """The dataset in a version folder with a catalog of at least `level`, built if need be."""
    dataset = read_dataset(path)
    places = candidates(dataset.path)[1 if cache else 0 :]
    for _ in range(3):  # another process may replace the catalog between two of our steps
        found = _current(dataset, places, level)
        if found is not None:
            return found
        with ExitStack() as stack:
            shown = progress or stack.enter_context(ProgressBar())
            build(
                dataset,
                _choose_folder(dataset, places, shown),
                level=level,
                quarantine=quarantine,
                pool=pool or stack.enter_context(ShardPool(workers)),
                progress=shown,
            )
    raise CatalogError(
        "the dataset keeps changing while its catalog is opened",
        dataset=dataset.title,
        file=str(dataset.path),
        remedy="Wait until it is complete, then open it again",
    )


def _current(dataset: RldsDataset, places: list[Path], level: str) -> Prepared | None:
    """The catalog as it stands, if it is true for the dataset and knows enough."""
    for folder in places:
        manifest = read_manifest(folder)
        if (
            manifest is not None
            and manifest.metadata_hash == dataset.metadata_hash
            and LEVELS.index(manifest.level) >= LEVELS.index(level)
            and not changed_shards(dataset, manifest)
        ):
            try:
                table = EpisodeTable(folder / manifest.table)
            except (OSError, ValueError):  # replaced or damaged meanwhile: build it anew
                continue
            return Prepared(dataset, folder, manifest, table)
    return None


def _choose_folder(dataset: RldsDataset, places: list[Path], progress: BuildProgress) -> Path:
    """Where to build: where a catalog already stands, else the first place that can be written."""
    standing = []
    for folder in places:
        manifest = read_manifest(folder)
        if manifest is None:
            continue
        standing.append(folder)
        if manifest.metadata_hash != dataset.metadata_hash:
            progress.note(f"{dataset.title}: its metadata changed; indexing it anew")
        elif changed := changed_shards(dataset, manifest):
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            progress.note(
                f"{dataset.title}: {changed[0]}{more} changed since it was indexed; "
                "indexing it again"
            )
    for folder in [*standing, *places]:
        if is_writable(folder):
            return folder
    raise CatalogError(
        "there is nowhere to write the catalog",
        dataset=dataset.title,
        file=str(places[-1]),
        remedy="Set HEADRACE_CACHE to a folder that can be written",
    )
