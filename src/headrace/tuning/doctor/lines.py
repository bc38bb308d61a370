"""The evidence in plain words, one line a figure; what is not known is said at the end. Pure."""

from __future__ import annotations

from headrace.measure.report.quantities import amount, megabytes, seconds, share
from headrace.tuning.doctor.evidence import Evidence

__all__ = ["evidence_lines"]


def evidence_lines(e: Evidence) -> tuple[str, ...]:
    """Every figure that is known."""
    return (*_loop(e), *_loader(e), *_machine(e), *_mfu(e), *_missing(e))


def _loop(e: Evidence) -> list[str]:
    lines = []
    if e.period_s is not None and e.waiting is not None:
        lines.append(
            f"step: {seconds(e.step_s)} and {seconds(e.wait_s)} of waiting "
            f"({share(e.waiting, 1)}), mean of {e.steps:,}"
        )
    if e.replayed_s is not None:
        more = ""
        if e.period_s and e.replayed_s:
            more = f"; perfect data would be {max(1.0, e.period_s / e.replayed_s):.2f}x"
        lines.append(f"the same step over a batch that is there: {seconds(e.replayed_s)}{more}")
    if e.copy_s is not None:
        where = "in the step" if e.copy_in_step else "beside the step"
        lines.append(f"copy to the device: {seconds(e.copy_s)} a batch, {where}")
    return lines


def _loader(e: Evidence) -> list[str]:
    lines = []
    if e.rate is not None:
        lines.append(f"in the loop: {amount(e.rate)} samples/s")
    if e.loader_alone is not None:
        lines.append(f"loader alone: {amount(e.loader_alone)} samples/s")
    limits = [
        f"{name} {amount(value)} samples/s"
        for name, value in (("decoding", e.decode_limit), ("storage", e.storage_limit))
        if value is not None
    ]
    if limits:
        lines.append(f"limits: {', '.join(limits)}")
    if e.read_s is not None and e.decode_s is not None:
        line = f"a sample alone: {seconds(e.read_s)} to read, {seconds(e.decode_s)} to decode"
        if e.loop_work_s is not None:
            line += f"; in the loop {seconds(e.loop_work_s)} in all"
        lines.append(line)
    return lines


def _machine(e: Evidence) -> list[str]:
    lines = []
    if e.cores is not None:
        busy = "" if e.cores_busy is None else f"{amount(e.cores_busy)} of "
        loop = "" if e.loop_cores is None else f" (the loop itself {amount(e.loop_cores)})"
        work = "" if e.threads is None else f"; the loader has {e.threads} threads"
        work += f" and {e.processes} processes" if e.processes and work else ""
        idle = "" if e.idle is None else f", without work {share(e.idle)} of the time"
        lines.append(f"cores: {busy}{e.cores}{' busy' if busy else ''}{loop}{work}{idle}")
    memory = []
    if e.budget is not None:
        memory.append(f"budget {megabytes(e.budget / 1e6)}")
    if e.slots is not None:
        of = f" of {e.slots_wanted}" if e.slots_wanted and e.slots <= e.slots_wanted else ""
        memory.append(f"room for {e.slots}{of} batches")
    if e.available is not None:
        memory.append(f"{megabytes(e.available / 1e6)} available")
    if memory:
        lines.append(f"memory: {', '.join(memory)}")
    return lines


def _mfu(e: Evidence) -> list[str]:
    now, perfect = e.mfu, e.mfu_with_perfect_data
    if now is None or perfect is None:
        return []
    missing = 1 - now
    data = perfect - now
    part = share(data / missing) if missing > 0 else "0%"
    return [
        f"MFU {share(now, 1)}; with perfect data {share(perfect, 1)}: data is {part} of what is "
        "missing, the rest is the model's own"
    ]


def _missing(e: Evidence) -> list[str]:
    """What was not measured and might change the verdict."""
    unknown = [
        name
        for name, value in (
            (
                "the step replayed over a batch that is there",
                e.replayed_s is not None or e.step_s is None or e.simulated,
            ),
            ("what the loader could deliver", e.capacity is not None),
        )
        if not value
    ]
    return [f"not measured: {', '.join(unknown)}"] if unknown else []
