"""What a change would bring: never more than the step with perfect data allows. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.measure.report.quantities import share
from headrace.tuning.doctor.evidence import Evidence, SourceCost
from headrace.tuning.doctor.verdict import Change

__all__ = ["decode_changes", "gain", "shares_of", "storage_changes"]

_WORTH = 1.05  # a change that brings less is not named


def gain(evidence: Evidence, loader_s: float | None) -> float | None:
    """How many times as many steps, if the loader needed so long for a batch."""
    if not evidence.period_s or evidence.bound_s is None or loader_s is None:
        return None
    return evidence.period_s / max(evidence.bound_s, loader_s, 1e-9)


def shares_of(
    sources: Sequence[SourceCost], cost: Callable[[SourceCost], float]
) -> list[tuple[SourceCost, float]]:
    """Each source's share of the cost of all, the largest first."""
    total = sum(source.share * cost(source) for source in sources)
    if total <= 0:
        return []
    parts = [(source, source.share * cost(source) / total) for source in sources]
    return sorted(parts, key=lambda part: -part[1])


def decode_changes(evidence: Evidence) -> list[Change]:
    """What helps a loop that waits for decoding, the greatest gain first."""
    changes: list[Change | None] = []
    sources = evidence.sources
    jpeg = [replace(s, decode_s=0.0) if s.encoding == "jpeg" else s for s in sources]
    if moved := _decode_share(sources, lambda s: s.encoding == "jpeg"):
        what = f"Decode JPEG on the GPU ({share(moved)} of the decode time)"
        changes.append(_change(evidence, what, jpeg))
    if sources:
        (worst, _), *_ = shares_of(sources, lambda s: s.decode_s)
        if len(sources) > 1:
            what = f"Halve the weight of {worst.name}"
            changes.append(_change(evidence, what, _halved(sources, worst)))
        if smaller := _smaller(evidence, worst):
            height, width = evidence.image_size or (0, 0)
            what = f"Store {worst.name} at {height}x{width} instead of {_size(worst)}"
            others = [smaller if s is worst else s for s in sources]
            changes.append(_change(evidence, what, others))
    changes.append(_more_cores(evidence))
    return _best(changes)


def storage_changes(evidence: Evidence) -> list[Change]:
    """What helps a loop that waits for reading."""
    changes = []
    sources = evidence.sources
    local = [replace(source, read_s=0.0) for source in sources]
    what = "Copy the data to a local disk, or leave memory for the page cache"
    changes.append(_change(evidence, what, local))
    if sources and evidence.threads and evidence.period_s:
        work = _work(sources)
        waits = 1 - _work(local) / work if work else 0.0
        # Threads that wait for the disk leave their core to others.
        loader_s = evidence.period_s * max(0.5, 1 - waits)
        what = f"Let {2 * evidence.threads} threads wait for it (workers={2 * evidence.threads})"
        changes.append(Change(what, gain(evidence, loader_s)))
    if len(sources) > 1:
        (worst, _), *_ = shares_of(sources, lambda s: s.read_s)
        what = f"Halve the weight of {worst.name}"
        changes.append(_change(evidence, what, _halved(sources, worst)))
    return _best(changes)


def _best(changes: Sequence[Change | None]) -> list[Change]:
    """Those worth naming, the greatest gain first; those without a figure last."""
    kept = [c for c in changes if c is not None and (c.gain is None or c.gain >= _WORTH)]
    return sorted(kept, key=lambda change: -(change.gain or 0.0))


def _change(evidence: Evidence, what: str, sources: Sequence[SourceCost]) -> Change:
    """A change of what samples cost: the loader's time scales with its work."""
    before = _work(evidence.sources)
    if not before or not evidence.period_s:
        return Change(what, None)
    return Change(what, gain(evidence, evidence.period_s * _work(sources) / before))


def _work(sources: Sequence[SourceCost]) -> float:
    return sum(source.share * (source.read_s + source.decode_s) for source in sources)


def _decode_share(sources: Sequence[SourceCost], which: Callable[[SourceCost], bool]) -> float:
    return sum(part for source, part in shares_of(sources, lambda s: s.decode_s) if which(source))


def _halved(sources: Sequence[SourceCost], worst: SourceCost) -> list[SourceCost]:
    """Half the weight of one, and the rest for the others in proportion."""
    rest = 1 - worst.share
    if rest <= 0:
        return list(sources)
    more = (1 - worst.share / 2) / rest
    return [
        replace(source, share=source.share * (0.5 if source is worst else more))
        for source in sources
    ]


def _smaller(evidence: Evidence, source: SourceCost) -> SourceCost | None:
    """The source stored at the size that is trained on: decoding goes with the pixels."""
    if evidence.image_size is None or not source.height or not source.width:
        return None
    part = math.prod(evidence.image_size) / (source.height * source.width)
    if part > 0.5:
        return None
    return replace(source, decode_s=source.decode_s * part, read_s=source.read_s * part)


def _size(source: SourceCost) -> str:
    return f"{source.height}x{source.width}"


def _more_cores(evidence: Evidence) -> Change | None:
    """As many cores as the step with perfect data would need."""
    threads, period, bound = evidence.threads, evidence.period_s, evidence.bound_s
    if not threads or not period:
        return None
    if evidence.cores and evidence.cores > threads:
        loader_s = period * threads / evidence.cores
        what = f"Let the loader use all {evidence.cores} cores (workers={evidence.cores})"
        return Change(what, gain(evidence, loader_s))
    if not bound:
        return Change("More or faster cores", None)
    needed = math.ceil(threads * period / bound)
    if needed > 4 * threads:  # nobody has so many: what twice as many bring
        needed = 2 * threads
    what = f"{needed} cores instead of {threads}"
    return Change(what, gain(evidence, period * threads / needed))
