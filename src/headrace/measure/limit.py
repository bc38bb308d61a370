"""The decode limit: the same draws, read and decoded in tight loops, with nothing else.

It is the yardstick of a loader: no loader that decodes these frames on these cores can be faster.
Processes, not threads, so that no interpreter lock is in it. The storage limit is the same without
decoding, each draw once, so that what is not in the page cache comes from the disk.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any

import numpy as np

from headrace.decoding.frame import FrameDecoder
from headrace.decoding.resize import use_one_thread_per_call
from headrace.engine.machine import allowed_cpus
from headrace.jobs import ProcessPool
from headrace.loader.feed import MixtureFeed
from headrace.loader.loader import feed_of

__all__ = ["DecodeLimit", "StorageLimit", "decode_limit", "storage_limit"]

#: From handing out the work to the moment that counts: all processes must run by then, because one
#: alone has the other cores' caches and clock for itself.
_START_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class DecodeLimit:
    """What was measured."""

    samples_per_s: float
    processes: int
    samples: int  #: decoded in all


@dataclass(frozen=True, slots=True)
class StorageLimit:
    """What was measured."""

    bytes_per_s: float
    samples_per_s: float
    processes: int


def storage_limit(
    loader: Any, *, seconds: float = 2.0, processes: int | None = None, samples: int = 32_768
) -> StorageLimit:
    """Read the frames of a loader's next draws, each once, without decoding them."""
    count = processes or allowed_cpus()
    draws = _draws(feed_of(loader), samples)
    jobs = [
        {"draws": draws[number::count], "seconds": seconds, "decode": False}
        for number in range(count)
    ]
    with ProcessPool("headrace.measure.limit:tight_loop", count) as pool:
        results = [result for _, result in pool.run(jobs, lambda *_: None)]
    return StorageLimit(
        bytes_per_s=sum(result["bytes"] / result["seconds"] for result in results),
        samples_per_s=sum(result["samples"] / result["seconds"] for result in results),
        processes=count,
    )


def _draws(feed: MixtureFeed, samples: int) -> list[dict[str, Any]]:
    """Where the frames of the next draws lie."""
    return [
        {
            "file": feed.sources[sample.source].catalog.shard_file(sample.shard)[0],
            "frames": list(zip(sample.offsets, sample.lengths, strict=True)),
            "channels": feed.sources[sample.source].camera.shape[-1],
        }
        for sample in feed.next_samples(samples)
    ]


def decode_limit(
    loader: Any, *, seconds: float = 3.0, processes: int | None = None, samples: int = 4096
) -> DecodeLimit:
    """Read and decode a loader's next draws in a tight loop on all allowed cores."""
    count = processes or allowed_cpus()
    options = feed_of(loader).options
    draws = _draws(feed_of(loader), samples)
    delay = _START_SECONDS
    with ProcessPool("headrace.measure.limit:tight_loop", count) as pool:
        while True:
            start = monotonic() + delay
            jobs = [
                {
                    "draws": draws[number::count],
                    "size": list(options.size),
                    "filter": options.resize,
                    "start": start,
                    "stop": start + seconds,
                }
                for number in range(count)
            ]
            results = [result for _, result in pool.run(jobs, lambda *_: None)]
            if max(result["ready"] for result in results) <= start or delay > 60:
                break
            delay *= 2  # somebody was late, and the others had the machine for themselves
    done = sum(result["samples"] for result in results)
    return DecodeLimit(samples_per_s=done / seconds, processes=count, samples=done)


def tight_loop(job: dict[str, Any], report: Any) -> dict[str, Any]:
    """One process's part of a limit."""
    del report
    if not job.get("decode", True):
        return _read_once(job)
    use_one_thread_per_call()
    decoder = FrameDecoder(filter=job["filter"])
    out = np.empty((*job["size"], 3), np.uint8)
    draws = [(d["file"], d["frames"], d["channels"]) for d in job["draws"]]
    files: dict[str, int] = {}
    for path, _, _ in draws:
        if path not in files:
            files[path] = os.open(path, os.O_RDONLY)
    longest = max(length for _, frames, _ in draws for _, length in frames)
    buffer = memoryview(bytearray(longest))
    ready, counted, place = monotonic(), 0, 0
    while (now := monotonic()) < job["stop"]:
        path, frames, channels = draws[place % len(draws)]
        place += 1
        for offset, length in frames:
            data = buffer[:length]
            os.preadv(files[path], [data], offset)
            decoder.decode(data, out, channels=channels)
        counted += now >= job["start"]
    for fd in files.values():
        os.close(fd)
    return {"samples": counted, "ready": ready}


def _read_once(job: dict[str, Any]) -> dict[str, Any]:
    """Read every draw's frames once, for at most so long."""
    files: dict[str, int] = {}
    for draw in job["draws"]:
        if draw["file"] not in files:
            files[draw["file"]] = os.open(draw["file"], os.O_RDONLY)
    longest = max(length for draw in job["draws"] for _, length in draw["frames"])
    buffer = memoryview(bytearray(longest))
    begun, samples, size = perf_counter(), 0, 0
    for draw in job["draws"]:
        for offset, length in draw["frames"]:
            size += os.preadv(files[draw["file"]], [buffer[:length]], offset)
        samples += 1
        if perf_counter() - begun > job["seconds"]:
            break
    ended = perf_counter()
    for fd in files.values():
        os.close(fd)
    return {"samples": samples, "bytes": size, "seconds": ended - begun}
