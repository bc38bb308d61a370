"""Believable network measurements: who measured whom, when, and how long the answer took.

A few hundred probes measure a few thousand destinations, some of them far more often than others.
A round-trip time follows the distance between the two and the probe's last mile, with log-normal
noise and now and then a queue; some measurements fail (-1), some addresses are missing. Times are
sorted within a shard and from shard to shard.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.testing.picture import seeded

__all__ = ["SCHEMA", "World", "shard_table"]

#: The five columns that are needed, between two that are not.
SCHEMA = pa.schema(
    [
        ("probe_id", pa.int64()),
        ("event_time", pa.timestamp("ns", tz="UTC")),
        ("src_addr", pa.string()),
        ("dst_addr", pa.string()),
        ("ip_version", pa.int64()),
        ("rtt", pa.float64()),
        ("kind", pa.string()),
    ]
)

_PROBES, _DESTINATIONS = 300, 5000
_START = 1_704_067_200_000_000_000  # 2024 begins, in nanoseconds
_GAP = 500_000_000  # nanoseconds between measurements, on average
_PAUSES = 1e-3  # of the gaps: minutes to hours
_SIX = 0.3  # of the measurements
_FAILED, _NO_SRC, _NO_DST = 0.03, 0.002, 0.01
_KINDS = ("ping", "traceroute")

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """The probes and destinations of a seed."""

    seed: int

    @cached_property
    def _rng(self) -> np.random.Generator:
        return seeded(self.seed, "network")

    @cached_property
    def places(self) -> _Floats:
        """Where everybody is on a sphere, probes first."""
        place = self._rng.standard_normal((_PROBES + _DESTINATIONS, 3))
        length: _Floats = np.sqrt((place**2).sum(axis=1, keepdims=True))
        return place / length

    @cached_property
    def last_mile(self) -> _Floats:
        """Milliseconds that every answer to a probe takes at least."""
        return np.exp(seeded(self.seed, "last mile").normal(1.2, 0.8, _PROBES))

    @cached_property
    def popularity(self) -> _Floats:
        """How often each destination is measured, as a distribution to look up in."""
        weights = 1 / np.arange(1, _DESTINATIONS + 1) ** 0.9
        share: _Floats = np.cumsum(weights) / weights.sum()
        return share

    @cached_property
    def texts(self) -> tuple[Any, Any]:
        """The addresses of everybody, of both versions."""
        rng = seeded(self.seed, "addresses")
        count = _PROBES + _DESTINATIONS
        four = rng.integers(0x0B000000, 0xDF000000, count)
        six = rng.integers(0, 1 << 62, (count, 2))
        return (
            pa.array([str(ipaddress.IPv4Address(int(value))) for value in four]),
            pa.array(
                [
                    str(ipaddress.IPv6Address(0x2001 << 112 | int(a) >> 14 << 64 | int(b)))
                    for a, b in six
                ]
            ),
        )

    def base_rtt(self, probe: npt.NDArray[np.int64], destination: npt.NDArray[np.int64]) -> _Floats:
        """Milliseconds between two, without noise: light in a fibre, and the last mile."""
        cosine = (self.places[probe] * self.places[_PROBES + destination]).sum(axis=1)
        kilometres = 6371 * np.arccos(np.clip(cosine, -1, 1))
        millis: _Floats = self.last_mile[probe] + 2 * 1.4 * kilometres / 200
        return millis


@lru_cache(maxsize=2)
def _world(seed: int) -> World:
    return World(seed)


def shard_table(seed: int, number: int, rows: int) -> Any:
    """The rows of shard `number`, counted over all splits, as an Arrow table."""
    world, rng = _world(seed), seeded(seed, "shard", number)
    probe = rng.integers(0, _PROBES, rows)
    destination = np.searchsorted(world.popularity, rng.random(rows)).clip(0, _DESTINATIONS - 1)
    six = rng.random(rows) < _SIX
    rtt = world.base_rtt(probe, destination) * np.exp(rng.normal(0, 0.12, rows))
    queued = rng.random(rows) < 0.05
    rtt[queued] += np.exp(rng.normal(3, 1.2, int(queued.sum())))
    rtt[rng.random(rows) < _FAILED] = -1.0
    return pa.table(
        [
            pa.array(1000 + probe),
            pa.array(_times(rng, number, rows), pa.timestamp("ns", tz="UTC")),
            _addresses(world, probe, six, rng.random(rows) < _NO_SRC),
            _addresses(world, _PROBES + destination, six, rng.random(rows) < _NO_DST),
            pa.array(np.where(six, 6, 4).astype(np.int64)),
            pa.array(rtt),
            pa.DictionaryArray.from_arrays(
                pa.array((rng.random(rows) < 0.2).astype(np.int32)), pa.array(_KINDS)
            ).cast(pa.string()),
        ],
        schema=SCHEMA,
    )


def _times(rng: np.random.Generator, number: int, rows: int) -> npt.NDArray[np.int64]:
    """Sorted, within the shard's share of the time."""
    gaps = rng.exponential(1.0, rows)
    pauses = rng.random(rows) < _PAUSES
    gaps[pauses] *= np.exp(rng.normal(6, 1, int(pauses.sum())))
    share = rows * _GAP
    moment = np.cumsum(gaps)
    within: npt.NDArray[np.int64] = (moment / moment[-1] * (share - 1)).astype(np.int64)
    return within + (_START + number * share)


def _addresses(
    world: World,
    who: npt.NDArray[np.int64],
    six: npt.NDArray[np.bool_],
    missing: npt.NDArray[np.bool_],
) -> Any:
    pool = pa.concat_arrays(world.texts)
    codes = pa.array(np.where(six, len(world.texts[0]), 0) + who, mask=missing)
    return pool.take(codes)
