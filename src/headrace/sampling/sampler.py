"""Draw number -> sample: the mixture, the order within its sources, validation, and the state.

The endless training sequence is cut into blocks of 65,536 draws. In each block source d has the
same number of places, and a keyed permutation of the block says where they are. Within a block the
places of a source are numbered in the order in which they come, so the number of earlier draws of
source d is `block * places[d] + rank`: no history is needed, and a source goes through its items
pass by pass.

The trade: shares are multiples of 1 / 65,536 (a smaller share is rounded up to that), and entering
a block lays out all of it (6 ms on one core), which is why the last few layouts are kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.sampling.bijection import Ints, Words, check_seed, hash_ints, name_key, permute
from headrace.sampling.items import ItemTable, SourceItems

_Ints32: TypeAlias = npt.NDArray[np.int32]

#: Draws in a block: 29 sources of 0.03 get 2,260 or 2,259 places, equal to within 0.05%.
BLOCK = 65_536
_KEPT_LAYOUTS = 4  # a batch spans two blocks, and ranks or a resumed run may need neighbours
_LAYOUT_KEY = 0x626C6F636B  # "block": keeps these keys apart from those of the sources
_REPLACEMENT_SALT = 0x7265706C616365  # "replace": an order unrelated to the regular one

#: Increase it when the same draws and seed give other samples, or when the dict's meaning changes.
STATE_VERSION = 1
_STATE_KEYS = ("version", "draws", "seed", "fingerprint")


# Shares of the sources.


def resolve_weights(
    weights: Sequence[float | str | None],
    pairs: Sequence[int],
    names: Sequence[str] | None = None,
) -> list[float]:
    """Shares that sum to 1, from weights as users write them.

    Numbers are shares; None and "proportional" divide the rest in proportion to the sources' pairs.
    Numbers alone are normalised, whatever their sum. Next to proportional ones they must leave a
    rest: a sum of 1 or more is an error, because anything else would silently give those sources
    nothing, or change the meaning of the numbers. A weight of 0 or less is a share of 0.

    >>> resolve_weights([0.5, None, "proportional"], pairs=[7, 300, 100])
    [0.5, 0.375, 0.125]
    """
    names = names or [f"number {i}" for i in range(len(weights))]
    if not len(weights) == len(pairs) == len(names):
        raise UsageError(
            f"{len(weights)} weights for {len(pairs)} numbers of pairs and {len(names)} names",
            remedy="Give one of each for every source.",
        )
    given: list[float | None] = []
    for name, weight in zip(names, weights, strict=True):
        if weight is None or weight == "proportional":
            given.append(None)
        elif not isinstance(weight, (int, float)) or not math.isfinite(weight):
            raise UsageError(
                f"weight of source {name!r} is {weight!r}",
                remedy='Give a finite number, or "proportional".',
            )
        else:
            given.append(max(0.0, weight))
    total = math.fsum(weight for weight in given if weight is not None)
    rest = [name for name, weight in zip(names, given, strict=True) if weight is None]
    if not rest:
        if total <= 0:
            raise UsageError("no source has a weight above 0", remedy="Give one a weight above 0.")
        return [(weight or 0.0) / total for weight in given]
    if total >= 1:
        raise UsageError(
            f"the given weights sum to {total:g}, which leaves nothing for the proportional "
            f"{', '.join(map(repr, rest))}",
            remedy="Lower them until they sum to less than 1, or give all sources a number.",
        )
    shared = sum(count for count, weight in zip(pairs, given, strict=True) if weight is None)
    if shared <= 0:
        raise UsageError(
            f"no pairs in the proportional {', '.join(map(repr, rest))}",
            remedy="Give these sources a smaller offset, another split, or weight 0.",
        )
    return [
        (1 - total) * count / shared if weight is None else weight
        for weight, count in zip(given, pairs, strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """How many places each source has in every block."""

    places: Ints  #: per source; they sum to the block
    block: int = BLOCK  #: draws in a block

    @classmethod
    def from_weights(cls, weights: Sequence[float], block: int = BLOCK) -> Shares:
        """Largest remainders of `block * weight / sum`, at least 1 for a weight above 0.

        >>> Shares.from_weights([0.5, 0.3, 0.2]).places.tolist()
        [32768, 19661, 13107]
        """
        for i, weight in enumerate(weights):
            if not math.isfinite(weight) or weight < 0:
                raise UsageError(
                    f"weights[{i}] is {weight!r}", remedy="A weight is a number from 0 upwards."
                )
        drawn = [i for i, weight in enumerate(weights) if weight > 0]
        if not drawn:
            raise UsageError(
                f"no weight above 0 among {len(weights)}", remedy="Give a source a weight above 0."
            )
        if len(drawn) > block:
            raise UsageError(
                f"{len(drawn)} sources do not fit in a block of {block} draws",
                remedy=f"Mix at most {block} sources, or merge small ones.",
            )
        places = np.zeros(len(weights), np.int64)
        for i, count in _apportion({i: Fraction(weights[i]) for i in drawn}, block):
            places[i] = count
        places.flags.writeable = False
        return cls(places, block)


def _apportion(weights: dict[int, Fraction], block: int) -> Iterator[tuple[int, int]]:
    """Exact in rational numbers, so that the order of summation does not matter."""
    while True:
        scale = block / sum(weights.values())
        tiny = [i for i, weight in weights.items() if weight * scale < 1]
        if not tiny:
            break
        for i in tiny:
            del weights[i]
            yield i, 1
        block -= len(tiny)
    quotas = {i: weight * scale for i, weight in weights.items()}
    left = block - sum(math.floor(quota) for quota in quotas.values())
    by_remainder = sorted(quotas, key=lambda i: (math.floor(quotas[i]) - quotas[i], i))
    for order, i in enumerate(by_remainder):
        yield i, math.floor(quotas[i]) + (order < left)


class BlockOrder:
    """The mixture as an array: draw number -> source and running number within that source.

    >>> order = BlockOrder(Shares.from_weights([2, 1]), seed=0)
    >>> source, ordinal = order.assign(np.arange(6))
    >>> source.tolist(), ordinal.tolist()
    ([0, 0, 0, 1, 0, 1], [0, 1, 2, 0, 3, 1])
    """

    def __init__(self, shares: Shares, seed: int) -> None:
        self.shares = shares
        self.seed = check_seed(seed)
        drawn = np.flatnonzero(shares.places)
        self._only = int(drawn[0]) if len(drawn) == 1 else None  # no layout is needed then
        self._layouts: dict[int, tuple[_Ints32, _Ints32]] = {}

    def __repr__(self) -> str:
        return f"BlockOrder({len(self.shares.places)} sources, seed={self.seed})"

    def assign(self, numbers: Ints) -> tuple[_Ints32, Ints]:
        """Source and running number within it, for each draw number."""
        numbers = np.asarray(numbers, np.int64)
        if numbers.size and numbers.min() < 0:
            raise UsageError(
                f"draw number {numbers.min()} is negative", remedy="Draws are numbered from 0."
            )
        if self._only is not None:
            return np.full(numbers.shape, self._only, np.int32), numbers.copy()
        blocks, positions = np.divmod(numbers, self.shares.block)
        source = np.empty(numbers.shape, np.int32)
        ordinal = np.empty(numbers.shape, np.int64)
        for block in np.unique(blocks).tolist():
            owner, rank = self._layout(block)
            here = blocks == block
            there = positions[here]
            source[here] = owner[there]
            ordinal[here] = block * self.shares.places[owner[there]] + rank[there]
        return source, ordinal

    def _layout(self, block: int) -> tuple[_Ints32, _Ints32]:
        kept = self._layouts
        if block not in kept:
            latest = list(kept.items())[1 - _KEPT_LAYOUTS :]
            kept = {**dict(latest), block: block_layout(self.shares, self.seed, block)}
            self._layouts = kept  # replaced, never changed: threads may be reading the old one
        return kept[block]


def block_layout(shares: Shares, seed: int, block: int) -> tuple[_Ints32, _Ints32]:
    """Per position of a block: its source, and how many places of that source come earlier."""
    key = hash_ints(seed, _LAYOUT_KEY, block)
    place = permute(np.arange(shares.block), shares.block, key)
    sources = np.arange(len(shares.places), dtype=np.int32)
    owner = np.repeat(sources, shares.places)[place]
    narrow = owner.astype(np.uint16) if len(sources) <= 1 << 16 else owner  # sorted by radix
    by_source = np.argsort(narrow, kind="stable")
    starts = np.cumsum(shares.places) - shares.places
    rank = np.empty(shares.block, np.int32)
    rank[by_source] = np.arange(shares.block) - np.repeat(starts, shares.places)
    return owner, rank


# The sequences: endless for training, one pass for validation.


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Samples as columns, one row a draw."""

    number: Ints  #: number of the draw
    source: _Ints32  #: index into the sources
    ordinal: Ints  #: how many draws of this source came earlier
    turn: Ints  #: pass over the source, from 0
    episode: Ints  #: index into the source's list of episodes
    start: Ints  #: first step t of the window

    def __len__(self) -> int:
        return len(self.number)


class Sampler:
    """The endless training sequence as an array: a pure function of the seed and the draw number.

    >>> sampler = Sampler([0.5, 0.5], [SourceItems([9, 4]), SourceItems([7])], 0, ["a", "b"])
    >>> draws = sampler.draw(np.arange(4))
    >>> draws.source.tolist(), draws.ordinal.tolist()
    ([0, 0, 0, 1], [0, 1, 2, 0])
    """

    def __init__(
        self,
        weights: Sequence[float],
        sources: Sequence[SourceItems],
        seed: int,
        names: Sequence[str],
    ) -> None:
        if not len(weights) == len(sources) == len(names):
            raise UsageError(
                f"{len(weights)} weights, {len(sources)} sources and {len(names)} names",
                remedy="Give one of each for every source.",
            )
        self.shares = Shares.from_weights(weights)
        for name, items, places in zip(names, sources, self.shares.places, strict=True):
            if places and not items.length:
                raise UsageError(
                    f"no sample in {len(items.counts)} episodes: none is longer than the offset",
                    remedy="Give this source a smaller offset, another split, or weight 0.",
                    dataset=name,
                )
        self.seed = check_seed(seed)
        self._blocks = BlockOrder(self.shares, self.seed)
        self._table = ItemTable(sources, _source_keys(self.seed, names))

    def __repr__(self) -> str:
        return f"Sampler({len(self.shares.places)} sources, seed={self.seed})"

    def draw(self, numbers: npt.ArrayLike) -> Draws:
        """The draws with these numbers."""
        number = np.asarray(numbers, np.int64)
        source, ordinal = self._blocks.assign(number)
        episode, start = self._table.locate(source, ordinal)
        turn = ordinal // self._table.lengths[source]
        return Draws(number, source, ordinal, turn, episode, start)

    def replacement(self, number: int, attempt: int) -> Draws:
        """What to take instead of draw `number`, which failed, as did `attempt - 1` replacements.

        It is another item of the same source and pass, from an order of its own, so that it is
        unlikely to be near its regular place. Attempts 1 to L reach all L items of the source.
        """
        return _replace(self._table, self.draw([number]), attempt)


class ValidationOrder:
    """One pass over all sources as an array: every item once, in a fixed order.

    The sources take turns, one item each, and those that are finished drop out. Even a few batches
    contain every source, small ones as often as large ones, so that a mean per source is meaningful
    from the first batches on. Within a source the order is the keyed one of a first pass, so a few
    batches already see many episodes.

    >>> order = ValidationOrder([SourceItems([9, 4]), SourceItems([2])], ["a", "b"])
    >>> order.length, order.draw(np.arange(6)).source.tolist()
    (15, [0, 1, 0, 1, 0, 0])
    """

    def __init__(self, sources: Sequence[SourceItems], names: Sequence[str], seed: int = 0) -> None:
        if len(sources) != len(names):
            raise UsageError(
                f"{len(sources)} sources and {len(names)} names",
                remedy="Give one name for every source.",
            )
        self._table = ItemTable(sources, _source_keys(check_seed(seed), names))
        lengths = self._table.lengths
        self.length = int(lengths.sum())
        # A phase ends when the shortest sources in it are finished. Kept per phase: the rounds
        # before it, its sources, and its first draw.
        self._rounds = np.unique(np.concatenate([[0], lengths]))[:-1]
        members = [np.flatnonzero(lengths > rounds) for rounds in self._rounds]
        self._width = np.array([len(phase) for phase in members], np.int64)
        self._members = np.concatenate([np.zeros(0, np.int64), *members]).astype(np.int32)
        self._first_member = np.cumsum(self._width) - self._width
        sizes = np.diff(self._rounds, append=lengths.max(initial=0)) * self._width
        self._begin = np.cumsum(sizes) - sizes

    def __repr__(self) -> str:
        return f"ValidationOrder({len(self._table.lengths)} sources, {self.length} items)"

    def draw(self, numbers: npt.ArrayLike) -> Draws:
        """The draws with these numbers, from 0 to `length` - 1."""
        number = np.asarray(numbers, np.int64)
        if number.size and (number.min() < 0 or number.max() >= self.length):
            raise UsageError(
                f"validation draw {number.max() if number.min() >= 0 else number.min()} is outside "
                f"a pass of {self.length}",
                remedy="Validation draws run from 0 to length - 1.",
            )
        phase = np.searchsorted(self._begin, number, side="right") - 1
        into, width = number - self._begin[phase], self._width[phase]
        source = self._members[self._first_member[phase] + into % width]
        ordinal = self._rounds[phase] + into // width
        episode, start = self._table.locate(source, ordinal)
        return Draws(number, source, ordinal, np.zeros_like(number), episode, start)

    def replacement(self, number: int, attempt: int) -> Draws:
        """As `Sampler.replacement`."""
        return _replace(self._table, self.draw([number]), attempt)


def _replace(table: ItemTable, draw: Draws, attempt: int) -> Draws:
    if attempt < 1:
        raise UsageError(f"attempt is {attempt}", remedy="Attempts are counted from 1.")
    length = table.lengths[draw.source]
    other = draw.turn * length + (draw.ordinal + attempt - 1) % length
    episode, start = table.locate(draw.source, other, salt=_REPLACEMENT_SALT)
    return dataclasses.replace(draw, episode=episode, start=start)


def _source_keys(seed: int, names: Sequence[str]) -> Words:
    """A key for each source, from the seed and its name: other sources do not change its order."""
    keys = np.array([name_key(name) for name in names], np.uint64)
    return hash_ints(seed, keys)


# The state: how many draws were consumed, and of which sequence.


@dataclass(frozen=True, slots=True)
class SamplerState:
    """The position in a sequence of draws: all that a resumed run needs.

    The loader makes the fingerprint: plain values of the mixture and, under "sources", a list of
    plain dicts with a "name" each.

    >>> state = SamplerState(128, 0, {"sources": [{"name": "bridge", "offset": 5}]})
    >>> SamplerState.from_dict(state.to_dict()) == state
    True
    """

    draws: int  #: draws consumed by all ranks together
    seed: int  #: of the sampler
    fingerprint: Mapping[str, Any]  #: of the mixture and its catalogs: plain values

    def to_dict(self) -> dict[str, Any]:
        """Plain values that survive JSON, YAML and pickle."""
        values = (STATE_VERSION, self.draws, self.seed, _plain(self.fingerprint))
        return dict(zip(_STATE_KEYS, values, strict=True))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplerState:
        """The inverse of `to_dict`."""
        missing = [key for key in _STATE_KEYS if key not in values]
        if missing:
            raise UsageError(
                f"not a loader state: {', '.join(missing)} missing among "
                f"{', '.join(map(str, values)) or 'no keys'}",
                remedy="Pass what `state_dict()` returned.",
            )
        if values["version"] != STATE_VERSION:
            raise UsageError(
                f"the loader state has version {values['version']!r}, not {STATE_VERSION}",
                remedy="Resume with the headrace that saved it, or start the sequence again.",
            )
        for key in ("draws", "seed"):
            value = values[key]
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
                raise UsageError(
                    f"{key} is {value!r} in the loader state",
                    remedy="It must be an integer from 0 upwards.",
                )
        return cls(int(values["draws"]), int(values["seed"]), _plain(values["fingerprint"]))

    def check(self, seed: int, fingerprint: Mapping[str, Any]) -> None:
        """Raise, saying what changed, unless seed and fingerprint are those of this state."""
        changed = list(differences(self.fingerprint, fingerprint))
        if self.seed != seed:
            changed.insert(0, f"seed was {self.seed}, is {seed}")
        if changed:
            raise UsageError(
                f"the loader state belongs to another sequence: {'; '.join(changed)}",
                remedy="Resume with the data, options and seed it was saved with, or start again "
                "without the state.",
            )


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What differs between two fingerprints, in words.

    >>> was = {"sources": [{"name": "a", "offset": 5}, {"name": "b", "offset": 5}]}
    >>> now = {"sources": [{"name": "a", "offset": 3}]}
    >>> list(differences(was, now))
    ["source 'b' was removed", "source 'a': offset was 5, is 3"]
    """
    was, now = dict(_plain(was)), dict(_plain(now))
    old = {source["name"]: source for source in was.pop("sources", [])}
    new = {source["name"]: source for source in now.pop("sources", [])}
    yield from _changes("", was, now)
    yield from (f"source {name!r} was removed" for name in old if name not in new)
    yield from (f"source {name!r} was added" for name in new if name not in old)
    common = [name for name in old if name in new]
    if common != (order := [name for name in new if name in old]):
        yield f"the order of the sources was {', '.join(common)}, is {', '.join(order)}"
    for name in common:
        yield from _changes(f"source {name!r}: ", old[name], new[name])


def _changes(of: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in [*was, *(key for key in now if key not in was)]:
        if key not in was:
            yield f"{of}{key} was not given, is {now[key]!r}"
        elif key not in now:
            yield f"{of}{key} was {was[key]!r}, is not given"
        elif was[key] != now[key]:
            yield f"{of}{key} was {was[key]!r}, is {now[key]!r}"


def digest(counts: npt.ArrayLike) -> str:
    """A short name for a long list of numbers, to show in a fingerprint that they changed.

    >>> digest([3, 0, 2])
    '72a64fc9bd9e'
    """
    data = np.ascontiguousarray(counts, "<i8").tobytes()
    return hashlib.blake2b(data, digest_size=6).hexdigest()


def _plain(value: Any) -> Any:
    """Tuples as lists, numpy scalars as numbers: what JSON would give back."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value
