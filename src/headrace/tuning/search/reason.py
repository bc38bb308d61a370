"""What a search found, in words and table cells. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.tuning.search.asked import Asked
from headrace.tuning.search.found import CUT, Found, Step, Tried
from headrace.tuning.search.judge import HINT, KEEP
from headrace.tuning.search.space import words

__all__ = ["HEADS", "cells", "effect", "reason", "result"]

#: Columns of the ladder's table.
HEADS = ("option", "tried", "speed (the best so far is 1)", "result")
_NEVER = "inside the noise", "no better", "not run again", "slower"


def cells(step: Step) -> tuple[str, str, str, str]:
    """The cells of `HEADS`."""
    values = [_value(step, tried) for tried in step.tried]
    results = [result(tried) for tried in step.tried]
    kept = [v for v, tried in zip(values, step.tried, strict=True) if tried.kept]
    if kept:
        outcome = f"kept {kept[0]}" if len(values) > 1 else "kept"
    elif len(set(results)) == 1:
        outcome = results[0]
    else:
        outcome = "; ".join(f"{v}: {r}" for v, r in zip(values, results, strict=True))
    return step.key, ", ".join(values), ", ".join(effect(t) for t in step.tried), outcome


def effect(tried: Tried) -> str:
    """How fast it was, of the best until then."""
    return tried.contrast.words


def result(tried: Tried) -> str:
    """What became of it.

    >>> from headrace.tuning.decision import Contrast
    >>> slow = Contrast("one round", 0.8, 0.8, 0.8, 1)
    >>> result(Tried({"a": 1}, {"a": 1}, "pass", None, slow, 80.0))
    'slower'
    """
    if tried.kept:
        return "kept"
    if tried.status != "pass":
        return str(tried.status)
    if tried.note:
        return tried.note
    ratio = tried.contrast.ratio
    if ratio is None:
        return "not known"
    if ratio < 2 - KEEP:
        return "slower"
    if tried.contrast.rounds > 1:
        return "inside the noise"
    return "no better" if ratio < HINT else "not run again"


def reason(found: Found, asked: Asked) -> str:
    """Why the winner is the winner: two or three sentences."""
    if found.ended == "nothing runs":
        return f"Nothing could be measured: the defaults themselves did not run ({found.cause})."
    if not found.steps:
        return f"Nothing was tried: {_cut(found, asked)}."
    sentences = [_headrace(found) if asked.backend == "headrace" else _first(found, asked)]
    sentences.append(_others(found))
    cut = [t for step in found.steps for t in step.tried if t.note == CUT]
    if cut:
        sentences.append(
            f"{words(cut[-1].difference)} looked better ({cut[-1].contrast.words}), but there was "
            "no time to run it again."
        )
    if found.ended == "time" and not found.unproved:
        sentences.append("The time ended the search; run the same command again to go on.")
    return " ".join(each for each in sentences if each)


def _first(found: Found, asked: Asked) -> str:
    best = words(found.best)
    if found.start_status != "pass":
        if found.proved:
            return f"{best} runs here; the defaults do not ({found.start_status})."
        return (
            f"Nothing is known to run: the defaults did not ({found.start_status}), and nothing "
            "that was tried did twice."
        )
    if not found.best:
        return "Keep the defaults: nothing that was tried is faster beyond the noise."
    if found.proved:
        return (
            f"{best} gave {_percent(found.proof.ratio)} over the defaults "
            f"({found.proof.words} in {found.proof.rounds} rounds in turns)."
        )
    if found.unproved:
        return (
            f"{best} is the best so far, but it was not run again against the defaults: "
            f"{_cut(found, asked)}."
        )
    if found.proof_status != "pass":
        return (
            f"Keep the defaults: {best} looked faster, but did not pass when it was run again "
            f"({found.proof_status})."
        )
    return (
        f"Keep the defaults: {best} looked faster in the search, but run again in turns it was "
        f"{found.proof.words} of them, which is inside the noise."
    )


def _headrace(found: Found) -> str:
    if found.proved:
        return (
            f"{words(found.best)} gave {_percent(found.proof.ratio)} ({found.proof.words}) here. "
            "That should not be: the defaults are meant to be best everywhere. Please report it "
            "with log.md and result.json of this folder."
        )
    if found.start_status != "pass":
        return f"The defaults did not pass: {found.start_status}."
    if found.unproved:
        return f"{words(found.best)} looked faster, but was not run again against the defaults."
    ratios = [(t.contrast.ratio or 0.0, t) for step in found.steps for t in step.tried]
    best, tried = max(ratios, key=lambda each: each[0])
    if found.proof.rounds:
        best, tried_words = found.proof.ratio or best, words(found.best)
    else:
        tried_words = words(tried.difference)
    against = "no faster" if best <= 1 else "inside the noise"
    return (
        f"Nothing to tune: the best of what was tried, {tried_words}, was at {best:.2f} of "
        f"the defaults, which is {against}."
    )


def _others(found: Found) -> str:
    """What was kept on the way, what was not, and what failed."""
    ladder = [step for step in found.steps if step.stage == "ladder"]
    kept = [t for step in found.steps for t in step.tried if t.kept]
    parts = []
    if len(kept) > 1:
        gains = [f"{words(t.difference)} gave {_percent(t.contrast.ratio)}" for t in kept]
        parts.append(f"when they were tried, {', then '.join(gains)}")
    left = [step for step in ladder if not any(t.kept or t.note == CUT for t in step.tried)]
    if left:
        what = _options(len(left), bool(kept))
        slow = sum(_class(step) == "slower" for step in left)
        dead = sum(_class(step) == "failed" for step in left)
        calm = len(left) - slow - dead
        classes = [(calm, "inside the noise"), (slow, "slower"), (dead, "not able to run")]
        said = [(count, text) for count, text in classes if count]
        if len(said) == 1:
            parts.append(f"{what} {'was' if len(left) == 1 else 'were'} {said[0][1]}")
        else:
            parts.append(f"of {what} {_list([f'{c} {_was(c)} {text}' for c, text in said])}")
    failed = [t for step in found.steps for t in step.tried if _failed(t)]
    if failed:
        shown = [f"{words(t.difference)} ({t.status})" for t in failed[:3]]
        more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
        parts.append(f"these did not run: {', '.join(shown)}{more}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _class(step: Step) -> str:
    results = {result(tried) for tried in step.tried}
    if results <= {"slower"}:
        return "slower"
    return "noise" if results & set(_NEVER) else "failed"


def _failed(tried: Tried) -> bool:
    return tried.status not in ("pass", "skipped") and tried.note != "not run"


def _options(count: int, other: bool) -> str:
    noun = "option" if count == 1 else "options"
    return f"the {'other ' if other else ''}{count} {noun}" if count > 1 or other else f"the {noun}"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _list(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else parts[0]


def _percent(ratio: float | None) -> str:
    return "an unknown gain" if ratio is None else f"{100 * (ratio - 1):+.0f}%"


def _cut(found: Found, asked: Asked) -> str:
    if found.ended == "interrupted":
        return "the search was interrupted; run the same command again to go on"
    return f"{asked.minutes:g} minutes were not enough; run the same command again to go on"


def _value(step: Step, tried: Tried) -> str:
    if step.stage == "ladder" and step.key in tried.difference:
        return words({step.key: tried.difference[step.key]}).partition("=")[2]
    return words(tried.difference)
