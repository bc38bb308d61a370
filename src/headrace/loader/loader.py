"""The loader: batches of a mixture, as a training program sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from headrace.config import Mixture
from headrace.errors import UsageError
from headrace.loader.batch import Batch
from headrace.loader.feed import LoaderStatistics, MixtureFeed
from headrace.loader.options import LoaderFields, LoaderOptions, changed_options, with_options


@with_options(LoaderOptions)
class Loader:
    """Endless batches of a mixture, on lease: a batch's memory is reused once it is let go.

    The iteration has no end, and a second `for` continues where the first stopped. Arrays of a
    batch are views of pooled memory: let go of them, or copy what you keep.

    >>> import headrace as hr
    >>> with hr.Loader(hr.Mixture.load("oxe29", ["root=data/oxe"]),  # doctest: +SKIP
    ...                batch_size=64, image_size=256, seed=0) as loader:
    ...     for batch in loader:
    ...         train_step(batch.frames)       # uint8 [64, 2, 256, 256, 3]

    `mixture` is a `Mixture`, a YAML file or a packaged name. Its weights are normalised: they
    count relative to their sum; where some sources have none, weights are shares and these split
    the rest by size. `names` lists the sources; `Batch.dataset` points into it.

    Options are the fields of `LoaderOptions`, given by name, or an object of it and what differs.
    """

    def __init__(
        self,
        mixture: Mixture | str | Path,
        options: LoaderOptions | None = None,
        /,
        **changes: Unpack[LoaderFields],
    ) -> None:
        self._feed = MixtureFeed(mixture, changed_options(LoaderOptions, options, changes))

    def __repr__(self) -> str:
        feed = self._feed
        return (
            f"<Loader of {len(feed.sources)} sources, batch {feed.options.batch_size}, "
            f"{feed.statistics().draws:,} draws consumed>"
        )

    @property
    def options(self) -> LoaderOptions:
        """The options, with rank and world size as they are."""
        feed = self._feed
        return replace(feed.options, rank=feed.rank, world_size=feed.world_size)

    @property
    def names(self) -> tuple[str, ...]:
        """The table of source names that `Batch.dataset` points into."""
        return self._feed.names

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._feed)

    def validation(self, limit_batches: int | None = None) -> Iterator[Batch]:
        """One pass over the validation splits in a fixed order, on the same workers and budget.

        Every source is in the first batches; the last batch may be shorter.
        """
        return self._feed.validation(limit_batches)

    def validation_length(self) -> int:
        """Samples of one validation pass, of all ranks together."""
        return self._feed.validation_length()

    def state_dict(self) -> dict[str, Any]:
        """Where the sequence stands: plain values, the same on every rank."""
        return self._feed.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where a state was taken; batch size, ranks and workers may be others."""
        self._feed.load_state_dict(state)

    def statistics(self) -> LoaderStatistics:
        """Frozen figures of everything so far."""
        return self._feed.statistics()

    def close(self) -> None:
        """End the workers and give the memory back."""
        self._feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def feed_of(loader: Any) -> MixtureFeed:
    """The feed of a `Loader`, or of what is built on one: for outputs, benchmark and doctor."""
    feed = loader if isinstance(loader, MixtureFeed) else getattr(loader, "_feed", None)
    if not isinstance(feed, MixtureFeed):
        raise UsageError(
            f"{type(loader).__name__} is not a loader of a mixture",
            remedy="Give a Loader or a TorchLoader",
        )
    return feed


def loader_over(feed: MixtureFeed) -> Loader:
    """A loader over a feed that was made by hand."""
    loader = Loader.__new__(Loader)
    loader._feed = feed
    return loader
