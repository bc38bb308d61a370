"""Figures of a loader, frozen."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.engine.statistics import EngineStatistics
from headrace.loader.work import Skipped

__all__ = ["LoaderStatistics"]


@dataclass(frozen=True, slots=True)
class LoaderStatistics:
    """A loader at one moment."""

    engine: EngineStatistics
    draws: int  #: draws consumed by all ranks together
    asked: dict[str, float]  #: exact share of each source
    too_short: dict[str, int]  #: episodes of each source that are shorter than a window
    skipped: int  #: samples that were damaged and replaced
    first_skipped: tuple[Skipped, ...]  #: the first of them, with what was wrong
