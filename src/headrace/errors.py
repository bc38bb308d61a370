"""What headrace raises. One base class to catch; every message ends with what to do.

HeadraceError
├── DataError                 something on disk is not as it should be
│   ├── DatasetError          the folder, its metadata or its set of shards
│   ├── RecordError           a TFRecord frame or the Example inside it
│   └── ImageError            an encoded image or tensor that cannot or must not be decoded
├── CatalogError              the index itself: cannot be written, lacks what was asked of it
├── BudgetError               the memory budget does not suffice
├── WorkerError               a process that works for the loader failed
├── SelectionError            what was asked for is not there
│   ├── SplitError            a split expression
│   ├── UnknownFieldError     a camera or field name
│   └── UnknownDatasetError   a name that the registry does not know
└── UsageError                a call or command line that cannot be
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
        """Fill in the places that the raiser could not know; known ones are kept."""
        for name, value in places.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    def to_dict(self) -> dict[str, Any]:
        """The error as plain values, to cross a process boundary."""
        places = {name: getattr(self, name) for name in _PLACES}
        return {
            "type": type(self).__name__,
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
    """Something on disk is not as it should be."""


class DatasetError(DataError):
    """The folder, its metadata or its set of shards is wrong."""


class RecordError(DataError):
    """A TFRecord frame or the Example inside it is damaged or not understood."""


class ImageError(DataError):
    """An encoded image or tensor cannot, or must not, be decoded."""


class CatalogError(HeadraceError):
    """The index cannot be written or lacks what was asked of it."""


class BudgetError(HeadraceError):
    """The memory budget does not suffice for what is asked."""


class WorkerError(HeadraceError):
    """A process that works for the loader crashed or failed."""


class SelectionError(HeadraceError):
    """What was asked for is not there."""


class SplitError(SelectionError, ValueError):
    """A split expression is malformed or selects nothing."""


class UnknownFieldError(SelectionError, KeyError):
    """No such camera or field; the message lists those there are."""

    __str__ = HeadraceError.__str__


class UnknownDatasetError(SelectionError, KeyError):
    """No such name in the registry; the message names the nearest."""

    __str__ = HeadraceError.__str__


class UsageError(HeadraceError, ValueError):
    """A call or command line that cannot be."""
