"""Split expressions such as `train[:90%]`, with exactly the results of TensorFlow Datasets.

    expression  = part {"+" part}                     white space only around the "+"
    part        = name | name "[" [bound] ":" [bound] "]" | name "[" shard "]" | "all"
    bound       = ["-"] number ["%" | "shard"]

Bounds count examples (in RLDS: episodes) in the order of the shards. Percentages are rounded to
the closest episode, halves to the even one. Parts may overlap and repeat; a part that is empty
is dropped, an expression of empty parts alone is an error.

TFDS 4.9 has surprising corner cases. They are followed, because a split must hold the same episodes
here as there:

- A unit on one side applies to both: `train[10:20%]` and `train[10%:20]` are `[10%:20%]`.
- Shard bounds are clipped like a Python slice, while counts out of range are errors.
- `[:0shard]` is the whole split, and a negative end below `-shards` wraps twice: of 4 shards
  `[:-6shard]` gives the first 2 and `[-6shard]` the first 3.
- `[:]` and `all[...]` are errors; `[:-0]` is empty; `[-0:]` is everything.
- `pct1_dropremainder` drops the remainder only where a bound is given: `[90%:]` reaches the end.

One is not followed: a slice that starts behind its stop. What TFDS gives for
`train[20:10]` depends on where the shards end: no data if the two are in different shards; the
rest of the shard if they are one apart in the same shard; otherwise the rest of the shard and
then a `FailedPreconditionError`. Here it is always a `SplitError`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from headrace.errors import SplitError, UsageError

Rounding: TypeAlias = Literal["closest", "pct1_dropremainder"]

_NAME = re.compile(r"[\w-]+")
_PLUS = re.compile(r"\s*\+\s*")
_PART = re.compile(r"(?P<name>[\w-]+)(?:\[(?P<selector>[\w%:.-]+)\])?\n?")
_BOUND = re.compile(r"(?:(?P<number>-?[\d_.]+)(?P<unit>%|shard)?)?")


@dataclass(frozen=True, slots=True)
class SplitPart:
    """Consecutive episodes of one split; never empty."""

    split: str  #: name of the split
    start: int  #: first episode
    stop: int  #: the one after the last


@dataclass(frozen=True, slots=True)
class _Slice:
    """A part as written."""

    split: str
    start: float | None = None
    stop: float | None = None
    unit: str = ""


class _Wrong(Exception):
    """What is wrong with an expression, and an example (`{}` is replaced by a known split)."""

    def __init__(self, reason: str, example: str = "{}[:90%]") -> None:
        super().__init__(reason)
        self.reason = reason
        self.example = example


def resolve_split(
    expression: str,
    splits: Mapping[str, Sequence[int]],
    *,
    rounding: Rounding = "closest",
    dataset: str | None = None,
) -> list[SplitPart]:
    """The episodes an expression selects, in its order; `splits` gives the lengths of the shards.

    `rounding="pct1_dropremainder"` makes every percent the same whole number of episodes, as
    `tfds.core.ReadInstruction(..., rounding="pct1_dropremainder")` does.

    >>> resolve_split("train[:25%] + test", {"train": [7, 0, 5], "test": [1]})
    [SplitPart(split='train', start=0, stop=3), SplitPart(split='test', start=0, stop=1)]
    """
    if rounding not in ("closest", "pct1_dropremainder"):
        raise UsageError(
            f"unknown rounding {rounding!r}", remedy="Use 'closest' or 'pct1_dropremainder'."
        )
    lengths = {name: [int(length) for length in shards] for name, shards in splits.items()}
    try:
        slices = [piece for text in _PLUS.split(expression) for piece in _parse(text, lengths)]
        spans = [_span(piece, lengths, rounding) for piece in slices]
        parts = [part for part in spans if part.start < part.stop]
        if not parts:
            raise _Wrong(f"selects no episode ({_describe(spans, lengths)})")
    except _Wrong as wrong:
        raise SplitError(
            f"split {expression!r}: {wrong.reason}",
            remedy=_remedy(wrong.example, lengths),
            dataset=dataset,
        ) from None
    return parts


def _parse(text: str, lengths: Mapping[str, Sequence[int]]) -> list[_Slice]:
    """One part as written; `all` means every split, in the dataset's order."""
    match = _PART.fullmatch(text)
    if match is None:
        raise _Wrong(f"{text!r} is not of the form name[start:stop]")
    name, selector = match["name"], match["selector"]
    if name == "all":
        if selector:
            raise _Wrong("'all' cannot be sliced", "{}[:90%]' or 'all")
        for known in lengths:
            if known == "all" or _NAME.fullmatch(known) is None:
                raise _Wrong(f"the dataset's split {known!r} cannot be part of 'all'", "{}")
        return [_Slice(known) for known in lengths]
    if name not in lengths:
        raise _Wrong(f"there is no split {name!r}", "{}")
    return [_Slice(name) if selector is None else _parse_selector(name, selector)]


def _parse_selector(name: str, selector: str) -> _Slice:
    bounds = [_BOUND.fullmatch(bound) for bound in selector.split(":")]
    written = [bound for bound in bounds if bound]
    if len(written) < len(bounds) or len(bounds) > 2:
        raise _Wrong(f"[{selector}] is not of the form [start:stop] or [number shard]")
    if not any(bound["number"] for bound in written):
        raise _Wrong(f"[{selector}] has neither start nor stop", "{}")
    unit = next((bound["unit"] for bound in written if bound["unit"]), "")
    numbers = [_number(bound["number"], unit) for bound in written]
    if len(numbers) == 2:
        return _Slice(name, numbers[0], numbers[1], unit)
    if unit != "shard" or numbers[0] is None:
        raise _Wrong(f"[{selector}] is a single number: only shards are taken singly", "{}[5:6]")
    return _Slice(name, numbers[0], numbers[0] + 1, unit)


def _number(text: str | None, unit: str) -> float | None:
    """A bound as TFDS reads it: any float in percent, otherwise an int."""
    if text is None:
        return None
    try:
        number = float(text) if unit == "%" else int(text)
    except ValueError:
        kind = "number" if unit == "%" else "whole number"
        raise _Wrong(f"{text!r} is not a {kind}") from None
    if unit == "%" and abs(number) > 100:
        raise _Wrong(f"{text}% is outside -100% to 100%")
    return number


def _span(piece: _Slice, lengths: Mapping[str, Sequence[int]], rounding: Rounding) -> SplitPart:
    """The part in absolute episodes; empty if it selects nothing."""
    shards = lengths[piece.split]
    count = sum(shards)
    start, stop = 0, count
    if piece.unit == "shard":
        if piece.start is not None:
            start = sum(shards[: int(piece.start)])
        if piece.stop is not None:
            end = int(piece.stop)
            stop = sum(shards[: end if end > 0 else len(shards) + end])
    else:
        if piece.start is not None:
            start = _episode(piece, piece.start, count, rounding)
        if piece.stop is not None:
            stop = _episode(piece, piece.stop, count, rounding)
    if start > stop:
        raise _Wrong(
            f"the slice of {piece.split!r} starts at episode {start}, behind its stop {stop}",
            "{}[10%:20%]",
        )
    return SplitPart(piece.split, start, stop)


def _episode(piece: _Slice, bound: float, count: int, rounding: Rounding) -> int:
    """A bound in percent or episodes as an absolute episode in 0..count."""
    if piece.unit != "%":
        episode = int(bound)
    elif rounding == "closest":
        episode = round(bound * count / 100.0)  # this very expression: halves must fall alike
    elif count < 100:
        raise _Wrong(
            f"rounding 'pct1_dropremainder' leaves nothing of the {count} episodes of "
            f"{piece.split!r}: it needs 100 or more"
        )
    elif not bound.is_integer():
        raise _Wrong(f"rounding 'pct1_dropremainder' takes whole percents, not {bound:g}%")
    else:
        episode = int(bound) * math.trunc(count / 100.0)
    if abs(episode) > count:
        raise _Wrong(f"{episode} is outside the {count} episodes of {piece.split!r}")
    return episode + count if episode < 0 else episode


def _describe(spans: Sequence[SplitPart], lengths: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(
        f"{span.split}: {span.start} to {span.stop} of {sum(lengths[span.split])}" for span in spans
    )


def _remedy(example: str, lengths: Mapping[str, Sequence[int]]) -> str:
    if not lengths:
        return "The dataset has no splits: was it prepared to the end?"
    known = ", ".join(f"{name} {sum(shards)}" for name, shards in lengths.items())
    largest = max(lengths, key=lambda name: sum(lengths[name]))
    return (
        f"Known splits and their episodes: {known}. Write for example '{example.format(largest)}'."
    )
