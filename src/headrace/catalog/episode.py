"""One episode of a catalog: what is known of it, and where its parts stand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.table import EpisodeTable
from headrace.formats.extract import BLOBS, FIXED, Part

__all__ = ["EpisodeInfo", "RowPlaces"]


@dataclass(frozen=True, slots=True)
class EpisodeInfo:
    """What a catalog knows of one episode."""

    number: int  #: its number in the catalog
    id: str  #: stable across runs and machines: "split/shard/record"
    split: str  #: split it belongs to
    file: str  #: shard, relative to the dataset's folder
    record: int  #: its number in the shard
    offset: int  #: first byte of its record's payload in the shard
    length: int  #: bytes of the payload
    steps: int | None  #: number of steps; None in a catalog of level "episodes"


class RowPlaces:
    """One row of the table as `formats.extract` wants to see it."""

    def __init__(self, table: EpisodeTable, row: int) -> None:
        self._table, self._row = table, row
        self.steps = table.value("steps", row)

    def start(self, part: Part) -> int:
        return self._table.value(f"start:{part.key}", self._row)

    def size(self, part: Part) -> int:
        if part.storage == FIXED:
            return self.steps * part.step_bytes
        assert part.storage != BLOBS
        return self._table.value(f"size:{part.key}", self._row)

    def ends(self, part: Part) -> NDArray[np.uint32]:
        return self._table.ends(part.key, self._row)
