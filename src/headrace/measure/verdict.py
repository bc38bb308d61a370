"""The judgement of a run: the rules that lead from what is known of it to one verdict. Pure.

The doctor, reports, benchmarks and training all give their verdicts through `give_verdict`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from headrace.errors import UsageError
from headrace.measure.evidence import (
    AT_LIMIT,
    NEAR_LIMIT,
    STARVED,
    Evidence,
    SourceCost,
    evidence_lines,
    run_evidence,
    source_lines,
)
from headrace.measure.quantities import amount, megabytes, seconds, share
from headrace.measure.results import Run, different_work

if TYPE_CHECKING:
    from headrace.measure.report.comparison import Range

#: A loop that waits for more of its time than this does too little to get in the way.
ONLY_WAITS = 0.9
#: With less idle time than this the workers are the limit, where the limits were not measured.
BUSY = 0.1

_WORTH = 1.05  # a change that gains less is not named
_OTHERS = "Look for other programs on these cores and disks"

Kind: TypeAlias = Literal[
    "compute",
    "decode",
    "storage",
    "copy",
    "memory",
    "python",
    "data",
    "feeds",
    "held up",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class Change:
    """Something to do about it."""

    what: str
    gain: float | None = None  #: times as many steps/s; None: not known

    def __str__(self) -> str:
        return self.what if self.gain is None else f"{self.what}: about {self.gain:.1f}x"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a run: one sentence, what it rests on, and what to change."""

    kind: Kind
    healthy: bool
    headline: str
    evidence: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


# -- the rules -------------------------------------------------------------------------------------


def give_verdict(evidence: Evidence) -> Verdict:
    """What limits this run: the first rule that applies."""
    found = next(verdict for rule in RULES if (verdict := rule(evidence)) is not None)
    return replace(found, evidence=(*evidence_lines(evidence), *evidence.notes))


def feeds(e: Evidence) -> Verdict | None:
    """Without a step: what the loader can feed, and whether that is what the machine allows."""
    if e.step_s is not None:
        return None
    rate = e.loader_alone or e.capacity
    if not rate or not e.batch_size:
        return _nothing()
    can = (
        f"{amount(rate)} samples/s: at batch {e.batch_size} a step longer than "
        f"{seconds(e.batch_size / rate)} will not wait"
    )
    limit = min((x for x in (e.decode_capacity, e.storage_capacity) if x), default=None)
    if e.loader_alone and limit and e.loader_alone < NEAR_LIMIT * limit:
        near = "storage" if e.storage_is_nearer else "decode"
        part = f"{share(e.loader_alone / limit)} of the {near} limit"
        if e.slots_are_held_down:
            return Verdict(
                "memory",
                False,
                f"Memory-bound prefetch: the loader feeds {can}, {part}; there is room for "
                f"{e.slots} batches instead of {e.slots_wanted}.",
                changes=(_more_budget(e, None),),
            )
        return Verdict(
            "held up",
            False,
            f"The loader feeds {can}, but that is {part}: something other than the data holds "
            "it up.",
            changes=(Change(_OTHERS),),
        )
    why = {True: "; reading limits it", False: "; decoding limits it", None: ""}
    return Verdict("feeds", True, f"The loader feeds {can}{why[e.storage_is_nearer]}.")


def copy_bound(e: Evidence) -> Verdict | None:
    """A batch's copy to the device takes longer than the step and than the loader."""
    if e.copy_s is None or e.step_s is None or not e.period_s:
        return None
    compute = e.step_s - (e.copy_s if e.copy_in_step else e.copy_wait_s)
    if e.replayed_s is not None:
        compute = min(compute, e.replayed_s) if e.copy_in_step else e.replayed_s
    loader_s = e.alone_s or e.wait_s or 0.0
    best = max(compute, loader_s)
    if e.copy_s <= max(best, STARVED * e.period_s):
        return None
    how = (
        "Let the loader copy, beside the step: TorchLoader(..., device='cuda')"
        if e.copy_in_step
        else "Copy less: smaller images, or frames that are decoded on the GPU"
    )
    return Verdict(
        "copy",
        False,
        f"Copy-bound: the copy of a batch to the device takes {seconds(e.copy_s)}, the step "
        f"itself {seconds(max(compute, 0.0))}, the loader {seconds(loader_s)}.",
        changes=(
            Change(how, e.period_s / (e.copy_s if e.copy_in_step else max(best, 1e-9))),
            Change("Copy uint8 from pinned memory, and make floats on the device"),
        ),
    )


def compute_bound(e: Evidence) -> Verdict | None:
    """The step does not wait, or its waiting costs nothing: perfect data would be no faster."""
    if e.waiting is None or e.period_s is None:
        return None
    free = e.replayed_s is not None and e.period_s <= (1 + STARVED) * e.replayed_s
    if not free and (e.waits or e.overlong):
        return None
    hidden = ", and replayed batches are no faster" if free and e.waits else ""
    return Verdict(
        "compute",
        True,
        f"Compute-bound: the step waits for data {share(e.waiting, 1)} of the time{hidden}; a "
        "faster loader cannot help.",
    )


def memory_bound(e: Evidence) -> Verdict | None:
    """It waits though the loader could do better, and there is no room to work ahead."""
    if not e.waits or not e.slots_are_held_down or not e.capacity:
        return None
    keeps_up = e.alone_s is not None and e.bound_s is not None and e.alone_s <= e.bound_s
    if e.at_capacity and not keeps_up:
        return None
    return Verdict(
        "memory",
        False,
        f"Memory-bound prefetch: {_starved(e)} though the loader could deliver "
        f"{amount(e.capacity)} samples/s; there is room for {e.slots} batches instead of "
        f"{e.slots_wanted}.",
        changes=(_more_budget(e, _gain(e, e.alone_s)),),
    )


def storage_bound(e: Evidence) -> Verdict | None:
    """It waits, the loader delivers about what it can, and reading is the nearer limit."""
    if not e.waits or not e.storage_is_nearer or not (e.at_capacity or e.reads_most):
        return None
    if e.reads_most and e.loop_read_s and e.loop_work_s:
        why = f"workers spend {share(e.loop_read_s / e.loop_work_s)} of their time in reads"
    else:
        why = f"reading allows {amount(e.storage_capacity)} samples/s"
    return Verdict(
        "storage",
        False,
        f"Storage-bound: {_starved(e)}, and {why}{_slowest(e, 'read')}.",
        changes=storage_changes(e),
    )


def cores_are_taken(e: Evidence) -> Verdict | None:
    """It waits, workers always had work, yet they did not get the cores they may use."""
    if not e.waits or e.idle is None or e.idle > BUSY or e.cores_busy is None:
        return None
    if not e.workers or not e.cores or (not e.processes and e.loop_is_busy):
        return None  # threads may have waited for Python's lock instead
    if e.storage_is_nearer is None and not (e.processes and e.loop_read_s is not None):
        return None  # or for the disk
    wanted = min(e.workers, e.cores)
    if e.cores_busy >= NEAR_LIMIT * wanted:
        return None
    return Verdict(
        "held up",
        False,
        f"Held up from outside: {_starved(e)}; the loader always had work for {wanted} cores, but "
        f"this program got only {amount(e.cores_busy)}.",
        changes=(Change(_OTHERS),),
    )


def decode_bound(e: Evidence) -> Verdict | None:
    """It waits, the loader delivers about what it can, and decoding is the nearer limit."""
    if not e.waits or not e.at_capacity or not e.decode_capacity or e.storage_is_nearer:
        return None
    if e.storage_is_nearer is None and (e.rate or 0.0) < NEAR_LIMIT * e.decode_capacity:
        return None
    cores = ""
    if e.cores_busy is not None and e.cores:
        cores = f"{amount(e.cores_busy)} of {e.cores} cores are busy, "
    return Verdict(
        "decode",
        False,
        f"Decode-bound: {cores}{_starved(e)}{_slowest(e, 'decode')}.",
        changes=decode_changes(e),
    )


def data_bound(e: Evidence) -> Verdict | None:
    """It waits for a loader that is known only by what it delivers alone."""
    if not e.waits or e.workers is not None or not e.loader_alone or e.alone_s is None:
        return None
    if e.at_capacity:
        bound = e.batch_size / e.bound_s if e.batch_size and e.bound_s else None
        could = "" if bound is None else f", the step could take {amount(bound)}"
        why = f"the loader alone feeds {amount(e.loader_alone)} samples/s{could}"
        change = Change("A faster loader, or more cores for it", _gain(e, 0.0))
    elif e.wait_s is not None and e.wait_s >= NEAR_LIMIT * e.alone_s:
        why = f"the loader takes {seconds(e.alone_s)} a batch and does not work beside the step"
        change = Change("Let it prefetch, in threads or processes of its own", _gain(e, e.alone_s))
    else:
        return None
    return Verdict("data", False, f"Data-bound: {_starved(e)}; {why}.", changes=(change,))


def python_bound(e: Evidence) -> Verdict | None:
    """The loader, or the step, is slower in this loop than by itself: the loop is in the way."""
    if e.waiting is None or e.rate is None or e.waiting > ONLY_WAITS or e.simulated:
        return None
    if not e.waits:
        if not e.overlong:
            return None
        why = (
            f"a step takes {seconds(e.step_s)} in the loop and {seconds(e.replayed_s)} with a "
            "batch that is there already"
        )
    elif (
        e.capacity
        and e.rate < NEAR_LIMIT * e.capacity
        and not e.slots_are_held_down
        and (e.loop_cores is None or e.loop_is_busy)
    ):
        why = (
            f"{_starved(e)}; the loader could deliver {amount(e.capacity)} samples/s, in this loop "
            f"it is {amount(e.rate)}"
        )
    else:
        return None
    best = _gain(e, e.alone_s if e.waits else 0.0)
    changes = [
        Change(
            "Shorten the loop's own Python (logging, metrics, conversions), and leave the loader "
            "its cores",
            best,
        )
    ]
    if e.processes == 0:
        change = "Let the loader work in processes, which do not share Python's lock (workers=None)"
        changes.insert(0, Change(change, best))
    return Verdict("python", False, f"Starved by the Python loop: {why}.", changes=tuple(changes))


def held_up(e: Evidence) -> Verdict | None:
    """It waits and the loader delivers less than it could, though the loop hardly does anything."""
    if not e.waits or not e.capacity or e.rate is None or e.rate >= NEAR_LIMIT * e.capacity:
        return None
    return Verdict(
        "held up",
        False,
        f"Held up from outside: {_starved(e)}; the loader could deliver {amount(e.capacity)} "
        f"samples/s and delivered {amount(e.rate)}, and it is not the loop.",
        changes=(Change(_OTHERS, _gain(e, e.alone_s)),),
    )


def unexplained(e: Evidence) -> Verdict:
    """It waits, but the figures that would say why are missing."""
    if e.waiting is None:
        return _nothing()
    if e.capacity is None and e.idle is not None and e.idle < BUSY:
        why = "the workers were busy all the time; what with was not measured"
    elif e.capacity is None:
        why = "what the loader could deliver was not measured, so the cause is not known"
    else:
        why = "the loader delivers what it can; whether reading or decoding limits it is not known"
    return Verdict(
        "unknown",
        False,
        f"Unexplained: {_starved(e)}; {why}.",
        changes=(Change("`headrace doctor MIXTURE --step-ms` measures the limits"),),
    )


#: In the order in which they are tried; the last always applies.
RULES: tuple[Callable[[Evidence], Verdict | None], ...] = (
    feeds,
    copy_bound,
    compute_bound,
    memory_bound,
    storage_bound,
    cores_are_taken,
    decode_bound,
    data_bound,
    python_bound,
    held_up,
    unexplained,
)


def _nothing() -> Verdict:
    return Verdict(
        "unknown",
        False,
        "Nothing was measured: the loop ended before its warm-up was over, or recorded no steps.",
    )


def _starved(e: Evidence) -> str:
    return f"the step waits for data {share(e.waiting)} of the time"


def _slowest(e: Evidence, stage: Literal["read", "decode"]) -> str:
    """The source that takes most of a stage, in words."""
    parts = e.shares_of(lambda s: s.read_s if stage == "read" else s.decode_s)
    if not parts:
        return ""
    source, part = parts[0]
    if len(parts) == 1:
        return f"; it is all {source.encoding.upper()} of {source.name}"
    return f"; {source.encoding.upper()} of {source.name} takes {share(part)} of the {stage} time"


# -- what a change would gain: never more than the step with perfect data allows -------------------


def _gain(e: Evidence, loader_s: float | None) -> float | None:
    """How many times as many steps, if the loader needed so long for a batch."""
    if not e.period_s or e.bound_s is None or loader_s is None:
        return None
    return e.period_s / max(e.bound_s, loader_s, 1e-9)


def decode_changes(e: Evidence) -> tuple[Change, ...]:
    """What helps a loop that waits for decoding, the greatest gain first."""
    changes: list[Change | None] = []
    parts = e.shares_of(lambda s: s.decode_s)
    if moved := sum(part for source, part in parts if source.encoding == "jpeg"):
        what = f"Decode JPEG on the GPU ({share(moved)} of the decode time)"
        jpeg = [replace(s, decode_s=0.0) if s.encoding == "jpeg" else s for s in e.sources]
        changes.append(_change(e, what, jpeg))
    if parts:
        worst = parts[0][0]
        if len(parts) > 1:
            changes.append(_half_of(e, worst))
        if smaller := _smaller(e, worst):
            height, width = e.image_size or (0, 0)
            size = f"{worst.height}x{worst.width}"
            what = f"Store {worst.name} at {height}x{width} instead of {size}"
            changes.append(_change(e, what, [smaller if s is worst else s for s in e.sources]))
    changes.append(_more_cores(e))
    return _best(changes)


def storage_changes(e: Evidence) -> tuple[Change, ...]:
    """What helps a loop that waits for reading, the greatest gain first."""
    local = [replace(source, read_s=0.0) for source in e.sources]
    what = "Copy the data to a local disk, or leave memory for the page cache"
    changes: list[Change | None] = [_change(e, what, local)]
    if e.sources and e.workers and e.period_s:
        work = _work(e.sources)
        waits = 1 - _work(local) / work if work else 0.0
        # Workers that wait for the disk leave their core to others.
        what = f"Let {2 * e.workers} workers wait for it (workers={2 * e.workers})"
        changes.append(Change(what, _gain(e, e.period_s * max(0.5, 1 - waits))))
    parts = e.shares_of(lambda s: s.read_s)
    if len(parts) > 1:
        changes.append(_half_of(e, parts[0][0]))
    return _best(changes)


def _best(changes: Sequence[Change | None]) -> tuple[Change, ...]:
    """Those worth naming, the greatest gain first; those without a figure last."""
    kept = [c for c in changes if c is not None and (c.gain is None or c.gain >= _WORTH)]
    return tuple(sorted(kept, key=lambda change: -(change.gain or 0.0)))


def _change(e: Evidence, what: str, sources: Sequence[SourceCost]) -> Change:
    """A change of what samples cost: the loader's time scales with its work."""
    before = _work(e.sources)
    if not before or not e.period_s:
        return Change(what)
    return Change(what, _gain(e, e.period_s * _work(sources) / before))


def _work(sources: Sequence[SourceCost]) -> float:
    return sum(source.share * source.work_s for source in sources)


def _half_of(e: Evidence, worst: SourceCost) -> Change:
    """Half the weight of one source, and the rest for the others in proportion."""
    rest = 1 - worst.share
    more = (1 - worst.share / 2) / rest if rest > 0 else 1.0
    sources = [
        replace(s, share=s.share * (0.5 if s is worst and rest > 0 else more)) for s in e.sources
    ]
    return _change(e, f"Halve the weight of {worst.name}", sources)


def _smaller(e: Evidence, source: SourceCost) -> SourceCost | None:
    """The source stored at the size that is trained on: decoding goes with the pixels."""
    if e.image_size is None or not source.height or not source.width:
        return None
    part = math.prod(e.image_size) / (source.height * source.width)
    if part > 0.5:
        return None
    return replace(source, decode_s=source.decode_s * part, read_s=source.read_s * part)


def _more_cores(e: Evidence) -> Change | None:
    """As many cores as the step with perfect data would need."""
    if not e.workers or not e.period_s:
        return None
    if e.cores and e.cores > e.workers:
        what = f"Let the loader use all {e.cores} cores (workers={e.cores})"
        return Change(what, _gain(e, e.period_s * e.workers / e.cores))
    if not e.bound_s:
        return Change("More or faster cores")
    needed = math.ceil(e.workers * e.period_s / e.bound_s)
    if needed > 4 * e.workers:  # nobody has so many: what twice as many gain
        needed = 2 * e.workers
    what = f"{needed} cores instead of {e.workers}"
    return Change(what, _gain(e, e.period_s * e.workers / needed))


def _more_budget(e: Evidence, best: float | None) -> Change:
    if e.budget and e.slot_bytes and e.slots_wanted and e.slots is not None:
        needed = e.budget + (e.slots_wanted - e.slots) * e.slot_bytes
        if not e.budget_given and e.available is not None and e.keep_free is not None:
            return Change(
                f"Free memory on the machine: {megabytes(e.available / 1e6)} are available, "
                f"{megabytes(needed / 1e6)} and {megabytes(e.keep_free / 1e6)} to keep free are "
                "wanted",
                best,
            )
        return Change(f"Raise the budget to {megabytes(needed / 1e6)}", best)
    return Change("Raise the budget, or free memory on the machine", best)


# -- in words --------------------------------------------------------------------------------------


def verdict_text(verdict: Verdict, evidence: Evidence) -> str:
    """Several lines for people: the verdict, what to change, what it rests on, the costs."""
    lines = [verdict.headline]
    lines += [f"  change: {change}" for change in verdict.changes]
    lines += [f"  {line}" for line in (*verdict.evidence, *source_lines(evidence))]
    return "\n".join(map(_one_line, lines))


def _one_line(text: str) -> str:
    """Names come from the data and may hold anything."""
    return "".join(c if c.isprintable() else " " for c in text)


def could_be_data(e: Evidence, mfu: float) -> str:
    """Whether a model's MFU could fall to that because of the data, in a sentence."""
    perfect, step, rate = e.mfu_with_perfect_data, e.bound_s, e.loader_alone
    if perfect is None or step is None or not rate or not e.batch_size:
        return "Not known: give flops_per_step and peak_flops, and let the loader run alone."
    if not 0 < mfu < 1:
        raise UsageError(f"mfu is {mfu}", remedy="Give a share, such as 0.15")
    if mfu >= perfect:
        return (
            f"No: with perfect data this step reaches {share(perfect, 1)}, which is no more "
            f"than {share(mfu, 1)}."
        )
    wait = step * (perfect / mfu - 1)
    alone = e.batch_size / rate
    numbers = (
        f"{share(mfu, 1)} instead of {share(perfect, 1)} would take {seconds(wait)} of waiting "
        f"a step, and this loader makes a batch in {seconds(alone)}"
    )
    if alone >= wait + step:
        return f"Yes: {numbers}, even beside the step."
    if alone >= wait:
        return f"Only if it does not work ahead: {numbers}."
    return f"No: {numbers}, even if it never worked ahead."


def nearer_limit(e: Evidence) -> str | None:
    """Which of decoding and storage limits first, with both figures; None: not measured."""
    if e.storage_is_nearer is None:
        return None
    name = "storage" if e.storage_is_nearer else "decoding"
    decode, storage = amount(e.decode_capacity), amount(e.storage_capacity)
    return f"{name} (decoding {decode} samples/s, storage {storage})"


def run_verdict(run: Run) -> str:
    """A run in some sentences: how it ended, how near the decode limit it came, what limits it."""
    words = []
    if run.status != "complete":
        why = f": {run.cause.rstrip('.')}" if run.cause else ""
        words.append(f"{run.status.capitalize()}{why}.")
    if not len(run.batches) and "samples_per_s" not in run.numbers:
        return " ".join([*words, "Nothing was measured."])
    evidence = run_evidence(run)
    verdict = give_verdict(evidence)
    if ratio := _limit_ratio(run):
        words.append(ratio)
    if verdict.kind != "unknown" or evidence.waiting is not None:
        words.append(verdict.headline)
    middle, slow = run.numbers.get("p50_s"), run.numbers.get("p99_s")
    if middle and slow is not None and slow >= 5 * middle:
        times = f"{slow / middle:.0f} times the median or longer"
        words.append(f"Uneven: one batch in a hundred takes {times}.")
    return " ".join(words) or "Measured; whether steps waited for data is not known."


def _limit_ratio(run: Run) -> str:
    ratio = run.numbers.get("limit_ratio")
    if ratio is None:
        return ""
    if ratio >= AT_LIMIT:
        return f"At the decode limit ({share(ratio)}): only more or faster cores would help."
    near = ratio >= NEAR_LIMIT
    return f"{'Near' if near else 'Far below'} the decode limit ({share(ratio)})."


def comparison_verdict(runs: Sequence[Run], ranges: Mapping[str, Mapping[str, Range]]) -> str:
    """Which is fastest, by how much, and whether the repeats agree.

    Runs that did different work have no verdict, but the difference is named.
    """
    measured = [run for run in runs if "samples_per_s" in run.numbers]
    if differ := different_work(measured):
        return f"No verdict: the runs did different work. What differs: {', '.join(differ)}."
    speed = {
        name: (figure.median, figure.low, figure.high, figure.runs)
        for name, figures in ranges.items()
        if (figure := figures.get("samples_per_s")) is not None
    }
    if len(speed) < 2:
        speed = {
            run.label: (rate, rate, rate, 1)
            for run in runs
            if run.status == "complete" and (rate := run.numbers.get("samples_per_s")) is not None
        }
    order = sorted(speed.items(), key=lambda item: -item[1][0])
    if len(order) < 2 or order[1][1][0] <= 0:
        return "Fewer than two runs are complete: there is nothing to compare."
    (first, (best, low, _, repeats)), (second, (next_best, _, high, _)) = order[:2]
    figures = f"{amount(best)} against {amount(next_best)} samples/s"
    if repeats > 1 and low <= high:
        return (
            f"{first} and {second} are equally fast as far as these runs can tell: {figures} in "
            "the median, and their ranges overlap."
        )
    if best / next_best < 1.02:
        return f"{first} and {second} are equally fast: {figures}."
    return f"{first} is fastest: {best / next_best:.2f} times the next, {second} ({figures})."
