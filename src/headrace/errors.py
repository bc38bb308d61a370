"""What headrace raises. One base class to catch; messages say where the problem is and what to do.

    HeadraceError
    ├── DataError                 data on disk are damaged or not what they should be
    │   ├── DatasetError          the folder, its metadata or its set of shards
    │   ├── RecordError           a TFRecord frame or the Example inside it
    │   └── ImageError            an encoded image or tensor: damaged, cannot be decoded, or refused
    ├── CatalogError              the index cannot be written, or lacks what a call needs
    ├── BudgetError               the memory budget is too small
    ├── WorkerError               a worker process of the loader failed
    ├── SelectionError            what was requested does not exist
    │   ├── SplitError            a split expression
    │   ├── UnknownFieldError     a camera or field name
    │   └── UnknownDatasetError   a name that is not in the registry
    └── UsageError                an invalid call, option or command line

All of them have the problem, the remedy and, where there is one, the place.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BudgetError",
    "CatalogError",
    "DataError",
    "DatasetError",
    "HeadraceError",
    "ImageError",
    "RecordError",
    "SelectionError",
    "SplitError",
    "UnknownDatasetError",
    "UnknownFieldError",
    "UsageError",
    "WorkerError",
]

_PLACES = ("dataset", "file", "offset", "episode", "frame", "field")


class HeadraceError(Exception):
    """The problem in one line, where it is, and the remedy.

    >>> str(RecordError("record length points past the end", file="a.tfrecord", offset=12))
    'record length points past the end [file a.tfrecord, offset 12]'
    """

    def __init__(
        self,
        problem: str,
        *,
        remedy: str | None = None,
        dataset: str | None = None,
        file: str | None = None,
        offset: int | None = None,
        episode: int | str | None = None,
        frame: int | None = None,
        field: str | None = None,
    ) -> None:
        self.problem = problem
        self.remedy = remedy
        self.dataset = dataset
        self.file = file
        self.offset = offset
        self.episode = episode
        self.frame = frame
        self.field = field
        super().__init__(problem)

    def __str__(self) -> str:
        places = [(name, getattr(self, name)) for name in _PLACES]
        where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        text = f"{self.problem} [{where}]" if where else self.problem
        return f"{text}. {self.remedy}" if self.remedy else text

    def within(self, **places: Any) -> HeadraceError:
        """Add the places that the code that raised it could not know; those known are kept."""
        for name, value in places.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    def to_dict(self) -> dict[str, Any]:
        """The error as plain values, to cross a process boundary.

        A subclass from elsewhere crosses it as the nearest class of this module.
        """
        places = {name: getattr(self, name) for name in _PLACES}
        known = globals()
        return {
            "type": next(c.__name__ for c in type(self).__mro__ if known.get(c.__name__) is c),
            "problem": self.problem,
            "remedy": self.remedy,
            **{name: value for name, value in places.items() if value is not None},
        }

    @staticmethod
    def from_dict(values: dict[str, Any]) -> HeadraceError:
        """The inverse of `to_dict`."""
        values = dict(values)
        kind = globals()[values.pop("type")]
        error: HeadraceError = kind(values.pop("problem"), **values)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return HeadraceError.from_dict, (self.to_dict(),)


class DataError(HeadraceError):
    """Data on disk are damaged or not what they should be."""


class DatasetError(DataError):
    """The folder, its metadata or its set of shards is wrong."""


class RecordError(DataError):
    """A TFRecord frame or the Example inside it is damaged or not understood."""


class ImageError(DataError):
    """An encoded image or tensor is damaged, cannot be decoded, or is refused."""


class CatalogError(HeadraceError):
    """The index cannot be written, or lacks what a call needs."""


class BudgetError(HeadraceError):
    """The memory budget is too small."""


class WorkerError(HeadraceError):
    """A worker process of the loader crashed or failed."""


class SelectionError(HeadraceError):
    """What was requested does not exist."""


class SplitError(SelectionError, ValueError):
    """A split expression is malformed or selects nothing."""


class UnknownFieldError(SelectionError, KeyError):
    """There is no such camera or field; the message lists those that exist."""

    __str__ = HeadraceError.__str__


class UnknownDatasetError(SelectionError, KeyError):
    """There is no such name in the registry; the message names the nearest."""

    __str__ = HeadraceError.__str__


class UsageError(HeadraceError, ValueError):
    """An invalid call, option or command line."""
