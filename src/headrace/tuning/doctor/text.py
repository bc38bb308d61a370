"""A verdict for people: the sentence, what to change, what it rests on, what sources cost. Pure."""

from __future__ import annotations

from headrace.measure.report.quantities import seconds, share
from headrace.tuning.doctor.evidence import Evidence
from headrace.tuning.doctor.gains import shares_of
from headrace.tuning.doctor.verdict import Verdict

__all__ = ["verdict_text"]

_SHOWN = 6  # sources; the rest rarely matters


def verdict_text(verdict: Verdict, evidence: Evidence) -> str:
    """Several lines, the verdict first."""
    lines = [_one_line(verdict.headline)]
    lines += [f"  change: {_one_line(str(change))}" for change in verdict.changes]
    lines += [f"  {_one_line(line)}" for line in verdict.evidence]
    lines += [f"  {line}" for line in _sources(evidence)]
    return "\n".join(lines)


def _sources(evidence: Evidence) -> list[str]:
    parts = shares_of(evidence.sources, lambda source: source.read_s + source.decode_s)
    if not parts:
        return []
    width = max(len(_one_line(source.name)) for source, _ in parts[:_SHOWN])
    lines = ["sources, by their share of the work (a sample: encoded bytes, read, decode):"]
    for source, part in parts[:_SHOWN]:
        kind = f"{source.encoding} {source.height}x{source.width}"
        lines.append(
            f"  {_one_line(source.name):<{width}} {share(part):>4}  {kind:<14} "
            f"{source.bytes / 1000:>6,.0f} kB  {seconds(source.read_s):>7}  "
            f"{seconds(source.decode_s):>7}"
        )
    if rest := parts[_SHOWN:]:
        left = sum(part for _, part in rest)
        lines.append(f"  {len(rest)} more, {share(left)} of the work")
    return lines


def _one_line(text: str) -> str:
    """Names come from the data and may hold anything."""
    return "".join(c if c.isprintable() else " " for c in text)
