"""What every backend of a benchmark is asked to deliver: the same samples, the same size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.config import Mixture
from headrace.loader import Loader

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """Batches of a mixture. Plain values, so that it can cross into a fresh process."""

    mixture: Mixture
    batch_size: int = 64
    image_size: int = 256
    seed: int = 0
    metadata: Literal["none", "dataset", "full"] = "full"
    workers: int | None = None  #: CPUs that may be used; None: all that are allowed
    options: Mapping[str, Any] = field(default_factory=dict)  #: the backend's own

    def loader(self, **options: Any) -> Loader:
        """headrace's own loader of it, with other options of its own."""
        return Loader(
            self.mixture,
            batch_size=self.batch_size,
            image_size=self.image_size,
            seed=self.seed,
            metadata=self.metadata,
            workers=self.workers,
            **options,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "mixture": self.mixture.to_dict(),
            "batch_size": self.batch_size,
            "image_size": self.image_size,
            "seed": self.seed,
            "metadata": self.metadata,
            "workers": self.workers,
            "options": dict(self.options),
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Job:
        """The inverse of `to_dict`."""
        return Job(**{**values, "mixture": Mixture.from_dict(values["mixture"])})
