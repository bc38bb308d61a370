"""Entry point: parses the command line, runs the command, turns errors into messages."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from headrace.cli.output import STDOUT
from headrace.errors import HeadraceError

_COMMANDS = (
    "synth",
    "index",
    "inspect",
    "verify",
    "bench",
    "study",
    "tune",
    "doctor",
    "train",
    "report",
)
_DESCRIPTION = """\
headrace feeds GPUs with training data from mixtures of many robot-learning datasets.

It reads RLDS datasets as TFDS wrote them, without TensorFlow. Start here:

  headrace synth oxe                  29 small datasets to try things with
  headrace index oxe                  index every dataset below a folder, once
  headrace inspect oxe                what is in them
  headrace inspect oxe/bridge/0.1.0 --picture bridge.png
  headrace verify oxe                 checksums and decoding
  headrace bench oxe29 root=oxe       how fast it streams, and how near the limit
  headrace study cpu_sweep root=oxe   many runs under a memory guard: a table, a decision
  headrace doctor oxe29 root=oxe      what limits it, and what to change
  headrace tune oxe29 root=oxe --backend tfdata   the fastest options of a backend, and why
  headrace train experiment=laq_debug   a model on generated data, on a CPU, in two minutes
  headrace report RUN ...             plots of a benchmark or training run; several compared
"""
_EPILOG = """\
exit code: 0 success, 1 something is wrong (with the data, a run of a study, the doctor's verdict),
2 the command could not be carried out, 130 interrupted. Catalogs are kept in <dataset>/.headrace,
or below HEADRACE_CACHE (default: the user's cache folder) where the dataset is read-only.
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="headrace",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in _COMMANDS:
        module = import_module(f"headrace.cli.{name}")
        sub = commands.add_parser(
            name,
            help=module.HELP,
            description=module.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; overrides (`key=value`) may be anywhere, which argparse does not support."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for number, (word, following) in enumerate(pairwise(words)):
        if word == "--json" and _is_override(following):
            words[number] = f"--json={STDOUT}"
    args, rest = parser.parse_known_args(words)
    overrides = [each for each in rest if _is_override(each)]
    if rest != overrides or (rest and not hasattr(args, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if getattr(args, "only", None) and hasattr(args, "overrides"):
        overrides.append(f"only=[{args.only}]")
    if overrides:
        args.overrides = [*args.overrides, *overrides]
    return args


def _is_override(word: str) -> bool:
    return "=" in word and not word.startswith("-")


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let a job that a cluster ends (SIGTERM) keep what it has finished, as after Ctrl-C."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # only the main thread may set handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code."""
    parser = build_parser()
    args = parsed(parser, arguments)
    if args.version:
        from headrace import __version__

        print(f"headrace {__version__}")
        return 0
    if args.command is None:
        parser.print_help()
        return 2
    try:
        with _sigterm_interrupts():
            code: int = args.run(args)
        sys.stdout.flush()
        return code
    except HeadraceError as error:
        print(f"headrace {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nheadrace {args.command}: interrupted; what was finished is kept", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def entry() -> None:
    """The `headrace` script."""
    sys.exit(main())
