"""Synthetic datasets to train on, generated once into the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace import __version__
from headrace.catalog.manifest import cache_folder
from headrace.errors import UsageError
from headrace.testing import synthesize

__all__ = ["MadeData"]


@dataclass(frozen=True, slots=True)
class MadeData:
    """Datasets of `headrace synth`."""

    only: tuple[str, ...]  #: registry names
    episodes: int = 32  #: of each
    seed: int = 0
    preset: str = "oxe29"
    max_steps: int | None = None  #: of an episode

    def folder(self) -> Path:
        """Where they are, or would be."""
        words = json.dumps([asdict(self), __version__]).encode()
        return cache_folder() / "synth" / hashlib.sha256(words).hexdigest()[:16]

    def make(self) -> Path:
        """The folder with the datasets in it; one that is there already is taken as it is."""
        folder = self.folder()
        if folder.is_dir():
            return folder
        aside = folder.with_name(f".{folder.name}.{os.getpid()}")
        try:
            aside.mkdir(parents=True)
            synthesize(
                aside,
                preset=self.preset,
                only=self.only,
                episodes=self.episodes,
                seed=self.seed,
                _max_steps=self.max_steps,
            )
            aside.rename(folder)
        except OSError as error:
            if not folder.is_dir():  # else another run was faster
                raise UsageError(
                    f"data cannot be generated in {str(folder.parent)!r}: {error.strerror}",
                    remedy="Set HEADRACE_CACHE to a folder with space, or give data.root",
                ) from None
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return folder
