"""`headrace verify`: check the data against their checksums."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.catalog.manifest import UNCHECKED
from headrace.cli.output import (
    add_json_option,
    add_workers_option,
    each_of,
    plural,
    print_damage,
    print_failures,
    readable_bytes,
)
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.catalog.check import Finding, Verdict

HELP = "check checksums and decoding; quarantine what is damaged"
DESCRIPTION = """\
Check every record's checksum and structure, compare its frames with the checksums of the catalog
where there is one, and decode a sample of the images, or all of them.
Damage is reported as dataset, file, offset, episode, frame. The exit code is 1 if there is any.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("path", metavar="PATH", nargs="*")
    parser.add_argument(
        "--from",
        metavar="RUN",
        dest="listed",
        help="only the episodes that a run has passed over (its folder, or a damaged.jsonl), and "
        "all of their images",
    )
    parser.add_argument(
        "--decode",
        choices=("none", "sample", "all"),
        default="sample",
        help="images to decode and values to read: none, some of every shard (default), or all",
    )
    parser.add_argument(
        "--quarantine",
        action="store_true",
        help="leave damaged episodes out of the catalog from now on",
    )
    add_workers_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Verify everything; 1 if anything is damaged or could not be verified."""
    from headrace.catalog.check import quarantine, verify
    from headrace.catalog.shards import ProgressBar, ShardPool
    from headrace.formats.rlds import find_datasets

    if bool(args.path) == bool(args.listed):
        raise UsageError("what is to be verified?", remedy="Give paths of datasets, or --from RUN")
    episodes = _episodes_of(Path(args.listed)) if args.listed else {}
    args.decode = "all" if args.listed else args.decode
    folders = [*episodes, *(folder for path in args.path for folder in find_datasets(path))]
    with ShardPool(args.workers) as pool, ProgressBar("verifying") as progress:
        verdicts, failures = each_of(
            folders,
            lambda each: verify(
                each, decode=args.decode, only=episodes.get(each), pool=pool, progress=progress
            ),
        )
    ok = not failures and all(verdict.ok for verdict in verdicts)
    args.json.write(
        {
            "ok": ok,
            "datasets": [_as_json(verdict) for verdict in verdicts],
            "failures": [failure.to_dict() for failure in failures],
        }
    )
    if not args.json.on_stdout:
        if not folders:
            print(f"no damaged frames are listed in {args.listed}")
        for verdict in verdicts:
            _print(verdict)
    for verdict in verdicts:
        if args.quarantine and not verdict.ok:
            count = quarantine(verdict)
            if not args.json.on_stdout:
                print(f"{verdict.name} {verdict.version}: {plural(count, 'episode')} quarantined")
    print_failures("verify", failures)
    return 0 if ok else 1


def _episodes_of(run: Path) -> dict[Path, dict[str, set[int]]]:
    """The records that a run has passed over, by dataset and shard."""
    from headrace.measure.runs import DAMAGED, RunReader

    reader = RunReader(run if run.is_dir() else run.parent)
    if not run.exists() or (run.is_file() and run.name != DAMAGED):
        raise UsageError(
            f"{str(run)!r} is not a run folder or a {DAMAGED}",
            remedy=f"Give the folder of a run; where there is a {DAMAGED} in it, frames were "
            "passed over",
        )
    found: dict[Path, dict[str, set[int]]] = {}
    for frame in reader.damaged_frames:
        shard, record = Path(str(frame.get("file"))), str(frame.get("episode")).rpartition("/")[2]
        if record.isdecimal():
            found.setdefault(shard.parent, {}).setdefault(shard.name, set()).add(int(record))
    return found


def _as_json(verdict: Verdict) -> dict[str, Any]:
    found = {"path": str(verdict.path), "ok": verdict.ok, "damaged_episodes": verdict.damaged}
    return {**asdict(verdict), **found}


def _print(verdict: Verdict) -> None:
    state = "ok" if verdict.ok else f"{plural(verdict.damaged, 'episode')} DAMAGED"
    print(
        f"{verdict.name} {verdict.version}: {state}; {plural(verdict.records, 'record')}, "
        f"{readable_bytes(verdict.bytes)}, {plural(verdict.frames_decoded, 'image')} decoded"
    )
    if verdict.catalog_checksums is False:
        print(f"  {UNCHECKED}")
    print_damage([_line(finding) for finding in verdict.findings])


def _line(finding: Finding) -> str:
    frame = "" if finding.frame is None else f", frame {finding.frame}"
    field = "" if finding.field is None else f", {finding.field}"
    note = "" if finding.damage else " (a note, not damage)"
    return (
        f"{finding.file}, offset {finding.offset}, episode {finding.episode}{frame}{field}: "
        f"{finding.problem}{note}"
    )
