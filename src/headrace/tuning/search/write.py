"""Writing what a search found: tuned.yaml, result.json and log.md, each whole or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.config.documents import to_yaml
from headrace.files import atomic_write
from headrace.measure.quantities import amount, megabytes
from headrace.measure.runs import write_json
from headrace.tuning.search.asked import Asked
from headrace.tuning.search.found import Found
from headrace.tuning.search.reason import HEADS, cells, effect, reason, result
from headrace.tuning.search.space import overrides, words

__all__ = ["log", "results", "tuned", "write_found"]


def results(found: Found, asked: Asked, machine: Mapping[str, Any]) -> dict[str, Any]:
    """What `result.json` says."""
    return {
        **asked.to_dict(),
        "winner": overrides(found.winner),
        "proved": found.proved,
        "reason": reason(found, asked),
        "command": asked.command(found.winner),
        "search": found.to_dict(),
        "machine": dict(machine),
    }


def tuned(found: Found, asked: Asked) -> str:
    """`tuned.yaml`: the winner, as a study of it against the defaults that can be run again."""
    settings = asked.settings
    long = {"steps": settings.steps} if settings.steps else {"seconds": settings.seconds}
    runs: list[dict[str, Any]] = [{"label": "defaults", "overrides": []}]
    if found.winner:
        runs.append({"label": "tuned", "overrides": overrides(found.winner)})
    values = {
        "name": "tuned",
        "about": reason(found, asked),
        "mixture": asked.mixture,
        "overrides": list(asked.given),
        "backend": asked.backend,
        **long,
        "warmup": settings.warmup,
        "warmup_seconds": settings.warmup_seconds,
        "repeats": 3,
        "guard": {"min_available": asked.guard.min_available},
        "runs": runs,
    }
    head = [
        "# The options that `headrace tune` chose. To use them:",
        f"#   {asked.command(found.winner)}",
    ]
    head.append("# To measure them against the defaults again: headrace study tuned.yaml")
    return "\n".join([*head, to_yaml(values)])


def log(found: Found, asked: Asked, machine: Mapping[str, Any]) -> str:
    """The page for people."""
    settings, guard = asked.settings, asked.guard
    long = f"{settings.seconds:g} s" if settings.seconds else f"{settings.steps} batches"
    given = ", ".join(f"`{each}`" for each in asked.given) or "none"
    body = [
        f"# tune: {asked.backend} on {asked.mixture}",
        "",
        f"- Machine: {machine['cpu']}, {machine['cores_allowed']} of {machine['cores']} CPUs, "
        f"{megabytes(machine['memory_bytes'] / 1e6)} of memory, {machine['system']}",
        f"- Mixture: {asked.mixture}; overrides of every run: {given}",
        f"- Measured: {long} a run after {settings.warmup} batches and "
        f"{settings.warmup_seconds:g} s of warm-up; {asked.minutes:g} minutes in all, "
        f"{found.runs} runs",
        f"- Guard: stopped under {megabytes(guard.min_available / 1e6)} available, without a batch "
        f"for {guard.stall_seconds:g} s, or after {guard.timeout_s:g} s",
        f"- Combinations: {found.sampler or 'not tried'}",
        "",
        "## Ladder",
        "",
        "One option at a time, each beside a run of the best until then; what looked better ran in "
        "turns with it.",
        "",
        *_table(HEADS, [cells(step) for step in found.steps if step.stage == "ladder"]),
    ]
    combined = [t for step in found.steps if step.stage == "sampler" for t in step.tried]
    if combined:
        rows = [(words(t.difference), effect(t), result(t)) for t in combined]
        body += ["", "## Combinations", ""]
        body += _table(("changed", "speed (the best so far is 1)", "result"), rows)
    notes = [
        f"- `{words(t.difference)}`: {t.status}: {t.cause}"
        for step in found.steps
        for t in step.tried
        if t.cause
    ]
    body += ["", "## What did not run", "", *map(_line, notes)] if notes else []
    if found.best:
        start, best = found.proof_rates
        body += ["", "## Proof", ""]
        body += _table(
            ("configuration", "samples/s", "ratio"),
            [
                ("defaults", amount(start), "1"),
                (words(found.best), amount(best), found.proof.words),
            ],
        )
    body += ["", "## Decision", "", reason(found, asked), "", "```"]
    body += [asked.command(found.winner), "```", ""]
    body.append("Runs are below `runs/`; `ledger.jsonl` has a line for each.")
    return "\n".join(body) + "\n"


def write_found(folder: Path, found: Found, asked: Asked, machine: Mapping[str, Any]) -> None:
    """Write everything anew; whoever reads meanwhile sees the old or the new."""
    atomic_write(folder / "tuned.yaml", tuned(found, asked))
    atomic_write(folder / "log.md", log(found, asked, machine))
    write_json(folder / "result.json", results(found, asked, machine))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return [*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)]


def _line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _cell(text: str) -> str:
    """Text that neither ends a cell nor a line."""
    return _line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
