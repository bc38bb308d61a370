"""What may be tried: options and their values, without what cannot be or has failed. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace.errors import UsageError
from headrace.measure.baselines.baseline import Baseline, Knob

__all__ = ["Changes", "Failures", "Space", "overrides", "space_of", "words"]

#: A configuration: what differs from where the search began, by the keys of overrides.
Changes: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Space:
    """The knobs of a search, with what they stand at when it begins."""

    knobs: tuple[Knob, ...]
    start: Mapping[str, Any] = field(default_factory=dict)
    #: `UsageError` for changes that cannot be together.
    check: Callable[[Changes], object] = lambda _changes: None

    def __repr__(self) -> str:
        return f"<Space of {len(self.knobs)} options, {self.values} values>"

    @property
    def values(self) -> int:
        """How many changes of one option there are."""
        return sum(len(knob.values) for knob in self.knobs)

    def steps(self, knob: Knob, at: Changes) -> list[dict[str, Any]]:
        """The configurations that one knob leads to from another configuration."""
        if not self._acts(knob, at):
            return []
        found = []
        for value in dict.fromkeys((*knob.values, self.start.get(knob.key))):
            along = {} if value == self.start.get(knob.key) else knob.along
            changes = self.normal({**along, **at, knob.key: value})
            # Back to the start is a step too, where something else had moved the knob away.
            if value != at.get(knob.key, self.start.get(knob.key)) and changes != at:
                found.append(changes)
        return found

    def chosen(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of a value for each of some knobs."""
        moved = [k for k in self.knobs if choice.get(k.key, self._first(k)) != self._first(k)]
        changes: dict[str, Any] = {}
        for knob in moved:
            changes |= knob.along
        return self.normal({**changes, **{knob.key: choice[knob.key] for knob in moved}})

    def normal(self, changes: Changes) -> dict[str, Any]:
        """Without what changes nothing; equal configurations are equal then, and print alike."""
        kept = {k: v for k, v in changes.items() if k not in self.start or v != self.start[k]}
        for knob in self.knobs:
            if knob.key in kept and not self._acts(knob, kept):
                del kept[knob.key]
        order = [knob.key for knob in self.knobs]
        keys = sorted(kept, key=lambda key: order.index(key) if key in order else len(order))
        return {key: kept[key] for key in keys}

    def problem(self, changes: Changes) -> str | None:
        """Why a configuration cannot be, by the backend's own rules; None: it can."""
        try:
            self.check(changes)
        except UsageError as error:
            return str(error)
        return None

    def difference(self, changes: Changes, at: Changes) -> dict[str, Any]:
        """What a configuration sets that another has otherwise."""
        keys = dict.fromkeys((*changes, *at))
        values = {key: changes.get(key, self.start.get(key)) for key in keys}
        return {k: v for k, v in values.items() if v != at.get(k, self.start.get(k))}

    def _acts(self, knob: Knob, at: Changes) -> bool:
        return all(at.get(k, self.start.get(k)) == value for k, value in knob.needs.items())

    def _first(self, knob: Knob) -> Any:
        return self.start.get(knob.key)


def space_of(
    baseline: Baseline, cpus: int, given: Mapping[str, Any], *, reorder: bool = False
) -> tuple[Space, tuple[str, ...]]:
    """The space of a backend, and the options it leaves alone because the user gave them.

    `given` has the user's own options by the keys of overrides. `reorder` lets it try options that
    shuffle worse or better.
    """
    fixed = []
    knobs = []
    for knob in baseline.knobs(cpus):
        if knob.reorders and not reorder:
            continue
        bound = [key for key in (knob.key, *knob.along) if key in given]
        if knob.key in given or any(given[key] != knob.along[key] for key in bound):
            fixed.append(knob.key)
        else:
            knobs.append(knob)
    prefix = f"{baseline.name}."
    # headrace's own options are written `loader.`, as in its guide.
    written = "loader." if baseline.name == "headrace" else prefix
    start = {f"{written}{key}": value for key, value in (baseline.options or {}).items()}
    start |= {"loader.workers": None, **given}

    def check(changes: Changes) -> None:
        if baseline.check is not None:
            all_of_it = {**given, **changes}.items()
            baseline.check(
                {k.removeprefix(prefix): v for k, v in all_of_it if k.startswith(prefix)}
            )

    return Space(tuple(knobs), start, check), tuple(fixed)


def words(changes: Changes) -> str:
    """A configuration as overrides.

    >>> words({"torch.workers": 4, "torch.pin": False, "a.mode": "full", "a.size": None})
    'torch.workers=4 torch.pin=false a.mode=full a.size=null'
    """
    return " ".join(overrides(changes)) or "defaults"


def overrides(changes: Changes) -> list[str]:
    """As they are typed."""
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in changes.items()
    ]


class Failures:
    """What has failed: not tried again, alone or with anything else."""

    def __init__(self) -> None:
        self._found: list[frozenset[tuple[str, Any]]] = []

    def __repr__(self) -> str:
        return f"<Failures {[dict(each) for each in self._found]}>"

    def add(self, difference: Changes) -> None:
        """Blame what differed from a configuration that ran in the same round."""
        if difference:
            self._found.append(frozenset(difference.items()))

    def hold(self, values: Mapping[str, Any]) -> bool:
        """Whether a configuration, with all its options, has something in it that failed."""
        return any(each <= values.items() for each in self._found)
