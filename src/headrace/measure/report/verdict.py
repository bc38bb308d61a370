"""What a run's figures mean, in a sentence or two of plain words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.measure.report.quantities import amount, seconds, share
from headrace.measure.report.runs import Range
from headrace.measure.runs import Run
from headrace.measure.starvation import AT_LIMIT, NEAR_LIMIT, STARVED

__all__ = ["comparison_verdict", "run_verdict"]

#: A step that waits more than this has hardly any work of its own.
_NOTHING_ELSE = 0.85


def run_verdict(run: Run) -> str:
    """How a run ended, how near it came to what the machine can do, and whether steps waited."""
    words = []
    if run.status != "complete":
        why = f": {run.cause.rstrip('.')}" if run.cause else ""
        words.append(f"{run.status.capitalize()}{why}.")
    if not len(run.batches) and "samples_per_s" not in run.numbers:
        return " ".join([*words, "Nothing was measured."])
    words += [sentence for sentence in (_limit(run), _waits(run), _tail(run)) if sentence]
    return " ".join(words) or "Measured; the decode limit is not known, so no verdict."


def comparison_verdict(runs: Sequence[Run], ranges: Mapping[str, Mapping[str, Range]]) -> str:
    """Which is fastest, by how much, and whether the repeats agree."""
    speed = {name: figures["samples_per_s"] for name, figures in ranges.items()
             if "samples_per_s" in figures}  # fmt: skip
    if len(speed) < 2:
        speed = {
            run.label: Range(rate, rate, rate, 1)
            for run in runs
            if run.status == "complete" and (rate := run.numbers.get("samples_per_s")) is not None
        }
    order = sorted(speed.items(), key=lambda item: -item[1].median)
    if len(order) < 2 or order[1][1].median <= 0:
        return "Fewer than two runs are complete: there is nothing to compare."
    (first, best), (second, next_best) = order[:2]
    ratio = best.median / next_best.median
    figures = f"{amount(best.median)} against {amount(next_best.median)} samples/s"
    if best.runs > 1 and best.low <= next_best.high:
        return (
            f"{first} and {second} are equally fast as far as these runs can tell: {figures} in "
            "the median, and their ranges overlap."
        )
    if ratio < 1.02:
        return f"{first} and {second} are equally fast: {figures}."
    return f"{first} is fastest: {ratio:.2f} times the next, {second} ({figures})."


def _limit(run: Run) -> str:
    ratio = run.numbers.get("limit_ratio")
    if ratio is None:
        return ""
    if ratio >= AT_LIMIT:
        return f"At the decode limit ({share(ratio)}): only more or faster cores would help."
    if ratio >= NEAR_LIMIT:
        return f"Near the decode limit ({share(ratio)})."
    return f"Reaches {share(ratio)} of the decode limit: something other than decoding holds it up."


def _waits(run: Run) -> str:
    stall, mean = run.numbers.get("stall_s_per_step"), run.numbers.get("mean_s")
    if stall is None or not mean:
        return ""
    part = stall / mean
    if part <= STARVED:
        return "The training step hardly waits for data."
    if part > _NOTHING_ELSE and run.numbers.get("simulated_step_ms") == 0:
        return ""  # there was no step that could wait
    return f"The training step waits {seconds(stall)} of {seconds(mean)} for data ({share(part)})."


def _tail(run: Run) -> str:
    middle, slow = run.numbers.get("p50_s"), run.numbers.get("p99_s")
    if not middle or slow is None or slow < 5 * middle:
        return ""
    return f"Uneven: one batch in a hundred takes {slow / middle:.0f} times the usual or longer."
