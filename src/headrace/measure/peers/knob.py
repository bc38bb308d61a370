"""An option of a backend that is worth trying, and which values: plain data for a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Knob"]


@dataclass(frozen=True, slots=True)
class Knob:
    """An option by the key of its override, with the values to try, likely ones first."""

    key: str
    values: tuple[Any, ...]
    #: What is set with a value that is not the default, where it would be refused or idle alone.
    along: Mapping[str, Any] = field(default_factory=dict)
    #: It does nothing unless these are set.
    needs: Mapping[str, Any] = field(default_factory=dict)
    #: Whether it makes samples come less well shuffled: a search leaves it alone unless told to.
    reorders: bool = False
