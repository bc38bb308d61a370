"""One small pure function a verdict, and the order in which they are asked."""

from __future__ import annotations

from headrace.measure.report.quantities import amount, megabytes, seconds, share
from headrace.measure.starvation import NEAR_LIMIT, STARVED
from headrace.tuning.doctor.evidence import Evidence, SourceCost
from headrace.tuning.doctor.gains import decode_changes, gain, shares_of, storage_changes
from headrace.tuning.doctor.lines import evidence_lines
from headrace.tuning.doctor.verdict import Change, Kind, Verdict

__all__ = [
    "compute_bound",
    "copy_bound",
    "cores_are_taken",
    "data_bound",
    "decode_bound",
    "feeds",
    "give_verdict",
    "held_up",
    "memory_bound",
    "python_bound",
    "storage_bound",
    "unexplained",
]

#: A step may take so much longer in the loop than replayed before the loop is blamed: a replayed
#: batch lies in the CPU's caches, and twenty steps are few.
OVERLONG = 1.15
#: A loop that waits for more of its time than this does too little to be in anybody's way.
ONLY_WAITS = 0.9
#: With less idle time than this the workers are the limit, where the limits were not measured.
BUSY = 0.1

_OTHERS = "Look for other programs on these cores and disks"


def give_verdict(evidence: Evidence) -> Verdict:
    """What limits this run: the first rule that applies."""
    found = (
        feeds(evidence)
        or copy_bound(evidence)
        or compute_bound(evidence)
        or memory_bound(evidence)
        or storage_bound(evidence)
        or cores_are_taken(evidence)
        or decode_bound(evidence)
        or data_bound(evidence)
        or python_bound(evidence)
        or held_up(evidence)
        or unexplained(evidence)
    )
    lines = (*evidence_lines(evidence), *evidence.notes)
    return Verdict(found.kind, found.healthy, found.headline, lines, found.changes)


def feeds(e: Evidence) -> Verdict | None:
    """Without a step: what the loader can feed, and whether that is what the machine allows."""
    if e.step_s is not None:
        return None
    rate = e.loader_alone or e.capacity
    if not rate or not e.batch_size:
        return _nothing()
    batch_s = e.batch_size / rate
    can = (
        f"{amount(rate)} samples/s: at batch {e.batch_size} a step longer than "
        f"{seconds(batch_s)} will not wait"
    )
    limit = min((x for x in (e.decode_capacity, e.storage_capacity) if x), default=None)
    if e.loader_alone and limit and e.loader_alone < NEAR_LIMIT * limit:
        part = share(e.loader_alone / limit)
        near = "storage" if e.storage_is_nearer else "decode"
        if slots_are_held_down(e):
            return Verdict(
                "memory",
                False,
                f"Memory-bound prefetch: the loader feeds {can}, {part} of the {near} limit; "
                f"there is room for {e.slots} batches instead of {e.slots_wanted}.",
                changes=(_more_budget(e, None),),
            )
        return Verdict(
            "held up",
            False,
            f"The loader feeds {can}, but that is {part} of the {near} limit: something other "
            "than the data holds it up.",
            changes=(Change(_OTHERS, None),),
        )
    why = {True: "; reading limits it", False: "; decoding limits it", None: ""}
    return Verdict("feeds", True, f"The loader feeds {can}{why[e.storage_is_nearer]}.")


def compute_bound(e: Evidence) -> Verdict | None:
    """The step does not wait, or its waiting costs nothing: perfect data would be no faster."""
    if e.waiting is None or e.period_s is None:
        return None
    free = e.replayed_s is not None and e.period_s <= (1 + STARVED) * e.replayed_s
    if not free and (e.waiting > STARVED or _overlong(e)):
        return None
    hidden = ", and replayed batches are no faster" if free and e.waiting > STARVED else ""
    return Verdict(
        "compute",
        True,
        f"Compute-bound: data waits {share(e.waiting, 1)} of the step{hidden}; a faster loader "
        "cannot help.",
    )


def copy_bound(e: Evidence) -> Verdict | None:
    """A batch's copy to the device takes longer than the step and than the loader."""
    if e.copy_s is None or e.step_s is None or not e.period_s:
        return None
    compute = e.step_s - (e.copy_s if e.copy_in_step else e.copy_wait_s)
    if e.replayed_s is not None:
        compute = min(compute, e.replayed_s) if e.copy_in_step else e.replayed_s
    loader_s = _alone_s(e) or e.wait_s or 0.0
    if e.copy_s <= max(compute, loader_s) or e.copy_s <= STARVED * e.period_s:
        return None
    best = max(compute, loader_s)
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
            Change(how, e.period_s / max(best, e.copy_s if e.copy_in_step else best)),
            Change("Copy uint8 from pinned memory, and make floats on the device", None),
        ),
    )


def storage_bound(e: Evidence) -> Verdict | None:
    """It waits, the loader delivers about what it can, and reading is the nearer limit."""
    if not _waits(e) or not e.storage_is_nearer or not (_at_capacity(e) or e.reads_most):
        return None
    slow = _slowest(e, "read")
    if e.reads_most and e.loop_read_s and e.loop_work_s:
        why = f"workers spend {share(e.loop_read_s / e.loop_work_s)} of their time in reads"
    else:
        why = f"reading allows {amount(e.storage_capacity)} samples/s"
    return Verdict(
        "storage",
        False,
        f"Storage-bound: data wait {share(e.waiting)} of the step, and {why}{slow}.",
        changes=tuple(storage_changes(e)),
    )


def cores_are_taken(e: Evidence) -> Verdict | None:
    """It waits, workers always had work, yet they did not get the cores they may use."""
    if not _waits(e) or e.idle is None or e.idle > BUSY or e.cores_busy is None:
        return None
    if not e.threads or not e.cores or (not e.processes and _loop_is_busy(e)):
        return None  # threads may have waited for Python's lock instead
    if e.storage_is_nearer is None and not (e.processes and e.loop_read_s is not None):
        return None  # or for the disk
    wanted = min(e.threads, e.cores)
    if e.cores_busy >= NEAR_LIMIT * wanted:
        return None
    return Verdict(
        "held up",
        False,
        f"Held up from outside: data wait {share(e.waiting)} of the step; the loader always had "
        f"work for {wanted} cores, but this program got only {amount(e.cores_busy)}.",
        changes=(Change(_OTHERS, None),),
    )


def decode_bound(e: Evidence) -> Verdict | None:
    """It waits, the loader delivers about what it can, and decoding is the nearer limit."""
    if not _waits(e) or not _at_capacity(e) or not e.decode_capacity or e.storage_is_nearer:
        return None
    if e.storage_is_nearer is None and (e.rate or 0.0) < NEAR_LIMIT * e.decode_capacity:
        return None
    cores = ""
    if e.cores_busy is not None and e.cores:
        cores = f"{amount(e.cores_busy)} of {e.cores} cores busy, "
    slow = _slowest(e, "decode")
    return Verdict(
        "decode",
        False,
        f"Decode-bound: {cores}data wait {share(e.waiting)} of the step{slow}.",
        changes=tuple(decode_changes(e)),
    )


def memory_bound(e: Evidence) -> Verdict | None:
    """It waits though the loader could do better, and there is no room to work ahead."""
    if not _waits(e) or not slots_are_held_down(e) or not e.capacity:
        return None
    if _at_capacity(e) and not _keeps_up(e):
        return None
    return Verdict(
        "memory",
        False,
        f"Memory-bound prefetch: data wait {share(e.waiting)} of the step though the loader could "
        f"deliver {amount(e.capacity)} samples/s; there is room for {e.slots} batches instead of "
        f"{e.slots_wanted}.",
        changes=(_more_budget(e, gain(e, _alone_s(e))),),
    )


def data_bound(e: Evidence) -> Verdict | None:
    """It waits for a loader whose inside is not known, but what that can do alone is."""
    alone = _alone_s(e)
    if not _waits(e) or e.threads is not None or not e.loader_alone or alone is None:
        return None
    if e.wait_s is not None and not _at_capacity(e) and e.wait_s >= NEAR_LIMIT * alone:
        best = max(alone, e.bound_s or 0.0)
        return Verdict(
            "data",
            False,
            f"Data-bound: data wait {share(e.waiting)} of the step; the loader takes "
            f"{seconds(alone)} a batch and does not work beside the step.",
            changes=(
                Change(
                    "Let it prefetch, in threads or processes of its own",
                    e.period_s / best if e.period_s and best else None,
                ),
            ),
        )
    if not _at_capacity(e):
        return None
    bound = e.batch_size / e.bound_s if e.batch_size and e.bound_s else None
    could = "" if bound is None else f", the step could take {amount(bound)}"
    return Verdict(
        "data",
        False,
        f"Data-bound: data wait {share(e.waiting)} of the step; the loader alone feeds "
        f"{amount(e.loader_alone)} samples/s{could}.",
        changes=(Change("A faster loader, or more cores for it", gain(e, 0.0)),),
    )


def python_bound(e: Evidence) -> Verdict | None:
    """The loader, or the step, is slower in this loop than by itself: the loop is in the way."""
    if e.waiting is None or e.rate is None or e.waiting > ONLY_WAITS or e.simulated:
        return None
    if not _waits(e):
        if not _overlong(e):
            return None
        headline = (
            f"Starved by the Python loop: a step takes {seconds(e.step_s)} in the loop and "
            f"{seconds(e.replayed_s)} with a batch that is there already."
        )
    elif (
        e.capacity
        and e.rate < NEAR_LIMIT * e.capacity
        and not slots_are_held_down(e)
        and (e.loop_cores is None or _loop_is_busy(e))
    ):
        headline = (
            f"Starved by the Python loop: data wait {share(e.waiting)} of the step; the loader "
            f"could deliver {amount(e.capacity)} samples/s, in this loop it is {amount(e.rate)}."
        )
    else:
        return None
    best = gain(e, _alone_s(e) if _waits(e) else 0.0)
    changes = []
    if e.processes == 0:
        changes.append(
            Change("Let the loader work in processes, which Python's lock does not hold", best)
        )
    changes.append(
        Change(
            "Shorten the loop's own Python (logging, metrics, conversions), and leave the loader "
            "its cores",
            best,
        )
    )
    return Verdict("python", False, headline, changes=tuple(changes))


def held_up(e: Evidence) -> Verdict | None:
    """It waits and the loader delivers less than it could, though the loop hardly does anything."""
    if not _waits(e) or not e.capacity or e.rate is None or e.rate >= NEAR_LIMIT * e.capacity:
        return None
    return Verdict(
        "held up",
        False,
        f"Held up from outside: data wait {share(e.waiting)} of the step; the loader could deliver "
        f"{amount(e.capacity)} samples/s and delivered {amount(e.rate)}, and it is not the loop.",
        changes=(Change(_OTHERS, gain(e, _alone_s(e))),),
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
        f"Data wait {share(e.waiting)} of the step; {why}.",
        changes=(Change("`headrace doctor MIXTURE --step-ms` measures the limits", None),),
    )


def slots_are_held_down(e: Evidence) -> bool:
    """Whether there were fewer batches ahead than the loader asks for."""
    return bool(e.slots and e.slots_wanted and e.slots < e.slots_wanted)


def _nothing() -> Verdict:
    return Verdict(
        "unknown",
        False,
        "Nothing was measured: the loop ended before its warm-up was over, or recorded no steps.",
    )


def _waits(e: Evidence) -> bool:
    return e.waiting is not None and e.waiting > STARVED


def _overlong(e: Evidence) -> bool:
    """The step is longer than the same step replayed, by more than its wait."""
    return bool(e.step_s and e.replayed_s and e.step_s > OVERLONG * e.replayed_s)


def _loop_is_busy(e: Evidence) -> bool:
    """Whether the loop can be in the way: by Python's lock no more than the time it is busy."""
    return e.loop_cores is not None and e.loop_cores > 1 - NEAR_LIMIT


def _alone_s(e: Evidence) -> float | None:
    """A batch of the loader when nothing disturbs it."""
    return e.batch_size / e.capacity if e.batch_size and e.capacity else None


def _at_capacity(e: Evidence) -> bool:
    return bool(e.rate and e.capacity and e.rate >= NEAR_LIMIT * e.capacity)


def _keeps_up(e: Evidence) -> bool:
    """On average, the loader alone is at least as fast as the step asks for."""
    alone = _alone_s(e)
    return alone is not None and e.bound_s is not None and alone <= e.bound_s


def _slowest(e: Evidence, stage: Kind | str) -> str:
    """The source that takes most of a stage, in words."""

    def cost(source: SourceCost) -> float:
        return source.read_s if stage == "read" else source.decode_s

    parts = shares_of(e.sources, cost)
    if not parts:
        return ""
    source, part = parts[0]
    if len(parts) == 1:
        return f"; it is all {source.encoding.upper()} of {source.name}"
    return f"; {source.encoding.upper()} of {source.name} takes {share(part)} of the {stage} time"


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
