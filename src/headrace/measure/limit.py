"""What machine and data allow, measured on the draws of a loader.

The decode limit: the same draws, read and decoded in tight loops with nothing else. No loader that
decodes these frames on these cores can be faster. Processes, not threads, so that no interpreter
lock is in it. The storage limit is the same without decoding, each draw once, so that what is not
in the page cache comes from the disk. `source_costs` says what a sample of each source takes.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.decoding.frame import FrameDecoder
from headrace.decoding.header import read_header
from headrace.decoding.resize import use_one_thread_per_call
from headrace.engine.machine import allowed_cpus
from headrace.errors import DataError
from headrace.jobs import ProcessPool
from headrace.loader.feed import MixtureFeed
from headrace.loader.loader import feed_of
from headrace.loader.mixture import OpenedSource
from headrace.loader.plan import Sample
from headrace.measure.evidence import SourceCost

#: From handing out the work to the moment that counts: all processes must run by then, because one
#: alone has the other cores' caches and clock for itself.
_START_SECONDS = 1.5

#: Draws that costs are measured on: enough for a source of a tenth of a percent to have some.
_DRAWS = 8192
_MOST_SAMPLES = 48  # of a source; their mean is good to a few percent
_FEWEST_SAMPLES = 3
_SOURCE_SECONDS = 0.1


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
            delay *= 2  # one was late, and the others had the machine for themselves
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


# -- what a sample of each source costs ------------------------------------------------------------


def source_costs(
    loader: Any,
    *,
    seconds: float = 3.0,
    watch: Callable[[str], None] = lambda _: None,
) -> tuple[SourceCost, ...]:
    """Read and decode some of the next draws of every source in this thread.

    Each source takes a tenth of a second at most, all of them about `seconds`. Nothing is drawn
    from the loader. Sources that do not occur in its next draws are left out.
    """
    feed = feed_of(loader)
    shares = feed.statistics().shares
    draws: dict[int, list[Sample]] = defaultdict(list)
    # From the end: what comes next has been read ahead by the loader, and lies in the page cache.
    for sample in reversed(feed.next_samples(_DRAWS)):
        if len(draws[sample.source]) < _MOST_SAMPLES:
            draws[sample.source].append(sample)
    decoder = FrameDecoder(filter=feed.options.resize)
    out = np.empty((*feed.options.size, 3), np.uint8)
    each = min(_SOURCE_SECONDS, seconds / len(feed.sources))
    found = []
    for number, source in enumerate(feed.sources):
        watch(source.name)
        cost = _cost(source, shares[source.name], draws[number], decoder, out, each)
        if cost is not None:
            found.append(cost)
    return tuple(found)


def _cost(
    source: OpenedSource,
    share: float,
    samples: Sequence[Sample],
    decoder: FrameDecoder,
    out: NDArray[np.uint8],
    seconds: float,
) -> SourceCost | None:
    count = size = height = width = 0
    read_s = decode_s = 0.0
    encodings: set[str] = set()
    channels = source.camera.shape[-1] if source.camera.shape else None
    begun = perf_counter()
    for sample in samples:
        if count >= _FEWEST_SAMPLES and perf_counter() - begun > seconds:
            break
        try:
            for step in source.offsets:
                started = perf_counter()
                data = source.catalog.encoded(
                    sample.episode, sample.start + step, source.camera.key
                )
                middle = perf_counter()
                decoder.decode(data, out, channels=channels)
                decode_s += perf_counter() - middle
                read_s += middle - started
                size += len(data)
                header = read_header(data)
                encodings.add(header.encoding)
                height, width = max(height, header.height), max(width, header.width)
        except DataError:  # the loader reports what is damaged; here it costs nothing
            continue
        count += 1
    if not count:
        return None
    return SourceCost(
        name=source.name,
        share=share,
        encoding=" and ".join(sorted(encodings)),
        height=height,
        width=width,
        bytes=size / count,
        read_s=read_s / count,
        decode_s=decode_s / count,
    )
