"""What a sample of each source costs, measured on its own draws by one thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from headrace.decoding.frame import FrameDecoder
from headrace.decoding.header import read_header
from headrace.errors import DataError
from headrace.loader.feed import MixtureFeed
from headrace.loader.mixture import OpenedSource
from headrace.loader.plan import Sample
from headrace.measure.evidence import SourceCost

__all__ = ["source_costs"]

#: Draws looked at: enough for a source of a tenth of a percent to have some.
_DRAWS = 8192
_MOST_SAMPLES = 48  # of a source; their mean is good to a few percent
_FEWEST_SAMPLES = 3
_SOURCE_SECONDS = 0.1


def source_costs(
    loader: MixtureFeed,
    *,
    seconds: float = 3.0,
    watch: Callable[[str], None] = lambda _: None,
) -> tuple[SourceCost, ...]:
    """Read and decode some of the next draws of every source, a tenth of a second each at most.

    All of them together take about `seconds`. Nothing is drawn from the loader. Sources that none
    of the next draws are of are left out.
    """
    asked = loader.statistics().shares
    draws: dict[int, list[Sample]] = defaultdict(list)
    # From the end: what comes next has been read ahead by the loader, and lies in the page cache.
    for sample in reversed(loader.next_samples(_DRAWS)):
        if len(draws[sample.source]) < _MOST_SAMPLES:
            draws[sample.source].append(sample)
    decoder = FrameDecoder(filter=loader.options.resize)
    out = np.empty((*loader.options.size, 3), np.uint8)
    each = min(_SOURCE_SECONDS, seconds / len(loader.sources))
    found = []
    for number, source in enumerate(loader.sources):
        watch(source.name)
        cost = _measure(source, asked[source.name], draws[number], decoder, out, each)
        if cost is not None:
            found.append(cost)
    return tuple(found)


@dataclass(slots=True)
class _Sum:
    samples: int = 0
    bytes: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0


def _measure(
    source: OpenedSource,
    share: float,
    samples: Sequence[Sample],
    decoder: FrameDecoder,
    out: np.ndarray[tuple[int, int, int], np.dtype[np.uint8]],
    seconds: float,
) -> SourceCost | None:
    spent = _Sum()
    encodings: set[str] = set()
    height = width = 0
    channels = source.camera.shape[-1] if source.camera.shape else None
    begun = perf_counter()
    for sample in samples:
        if spent.samples >= _FEWEST_SAMPLES and perf_counter() - begun > seconds:
            break
        try:
            for step in source.offsets:
                started = perf_counter()
                data = source.catalog.encoded(
                    sample.episode, sample.start + step, source.camera.key
                )
                middle = perf_counter()
                decoder.decode(data, out, channels=channels)
                spent.decode_s += perf_counter() - middle
                spent.read_s += middle - started
                spent.bytes += len(data)
                header = read_header(data)
                encodings.add(header.encoding)
                height, width = max(height, header.height), max(width, header.width)
        except DataError:  # the loader says what is wrong with it; here it costs nothing
            continue
        spent.samples += 1
    if not spent.samples:
        return None
    return SourceCost(
        name=source.name,
        share=share,
        encoding=" and ".join(sorted(encodings)),
        height=height,
        width=width,
        bytes=spent.bytes / spent.samples,
        read_s=spent.read_s / spent.samples,
        decode_s=spent.decode_s / spent.samples,
    )
