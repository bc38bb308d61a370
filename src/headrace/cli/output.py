"""What commands print: JSON for programs; tables, numbers and progress for people."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import HeadraceError, UsageError

if TYPE_CHECKING:
    from headrace.measure.bench import Watch

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

STDOUT = "-"  #: what `--json` alone stands for
_SHOWN = 20  # damaged places in the terminal

# -- JSON ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JsonOutput:
    """Where a command's result goes as JSON: nowhere, to stdout, or to a file.

    A command writes its result once (`args.json.write(result)`), and prints nothing else to stdout
    `if args.json.on_stdout`.
    """

    target: str | None = None

    @property
    def on_stdout(self) -> bool:
        """Whether stdout belongs to the JSON."""
        return self.target == STDOUT

    def write(self, result: dict[str, Any]) -> None:
        """Write the result where it was asked for, if it was."""
        if self.target is None:
            return
        text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
        if self.on_stdout:
            sys.stdout.write(text)
            return
        path = Path(self.target)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"the JSON cannot be written: {error.strerror}",
                file=self.target,
                remedy="Check its folder, or give --json another FILE",
            ) from None

    @contextlib.contextmanager
    def kept_clean(self) -> Iterator[None]:
        """Send what others print to stderr meanwhile, where stdout belongs to the JSON."""
        if self.on_stdout:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        else:
            yield


def add_json_option(parser: argparse.ArgumentParser, what: str = "the result") -> None:
    """Add `--json [FILE]`; `args.json` is then a `JsonOutput`."""
    parser.add_argument(
        "--json",
        nargs="?",
        const=JsonOutput(STDOUT),
        default=JsonOutput(),
        type=_json_target,
        metavar="FILE",
        help=f"print {what} as one JSON object and nothing else; with FILE, write it there as well",
    )


def _json_target(value: str) -> JsonOutput:
    if Path(value).is_dir():
        raise argparse.ArgumentTypeError(f"{value!r} is a folder: put --json behind the paths")
    return JsonOutput(value)


# -- numbers and text ----------------------------------------------------------------------------


def readable_bytes(number: float | None) -> str:
    """Bytes with a unit.

    >>> readable_bytes(3_500_000)
    '3.5 MB'
    """
    if number is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(number) < 1000 or unit == "TB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError


def plural(number: int, noun: str) -> str:
    """A number and its noun.

    >>> plural(1, "dataset"), plural(2, "dataset")
    ('1 dataset', '2 datasets')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def one_line(text: str, limit: int | None = None) -> str:
    """Text from data or from a run, which may hold anything, made safe for one terminal line."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown if limit is None or len(shown) <= limit else shown[: limit - 3] + "..."


# -- mixtures and many datasets ------------------------------------------------------------------


def add_mixture_arguments(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add MIXTURE and what changes one: `--only a,b` and KEY=VALUE, both in `args.overrides`."""
    parser.add_argument(
        "mixture",
        metavar="MIXTURE",
        nargs="?" if optional else None,
        help="a YAML file, a packaged mixture, or YAML: '{root: DIR, sources: [{name: bridge}]}'",
    )
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="dotted overrides")
    add_only_option(parser)


def add_only_option(parser: argparse.ArgumentParser) -> None:
    """Add `--only a,b`, which `main` turns into the override `only=[a,b]`."""
    parser.add_argument("--only", metavar="NAMES", help="only these sources of the mixture: a,b")


def add_workers_option(parser: argparse.ArgumentParser) -> None:
    """Add `--workers N`."""
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: all CPUs)")


def each_of(
    items: Iterable[_Item], work: Callable[[_Item], _Result]
) -> tuple[list[_Result], list[HeadraceError]]:
    """What `work` gives for each item; the items that fail do not stop the others."""
    results, failures = [], []
    for item in items:
        try:
            results.append(work(item))
        except HeadraceError as error:
            failures.append(error)
    return results, failures


def print_failures(command: str, failures: Iterable[HeadraceError]) -> None:
    """What failed, on stderr."""
    for failure in failures:
        print(f"headrace {command}: {failure}", file=sys.stderr)


def print_damage(lines: Sequence[str]) -> None:
    """What is damaged, on stdout: the first places."""
    for line in lines[:_SHOWN]:
        print(f"  {line}")
    if len(lines) > _SHOWN:
        print(f"  and {len(lines) - _SHOWN} more (see --json)")


# -- tables --------------------------------------------------------------------------------------


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | int | None]]) -> None:
    """A table on stdout; columns whose name starts with ">" are aligned to the right.

    A column without a name is for remarks, and is left out if there are none. None is an unknown
    number. In a terminal the table fits the width, by shortening cells; elsewhere it is as wide as
    need be.

    >>> print_table(["name", ">steps"], [("bridge", 1031), ("rt1", None)])
    name    steps
    ─────────────
    bridge  1,031
    rt1         -
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def shown_cell(cell: str | int | None) -> str:
        if isinstance(cell, str):
            return one_line(cell, 72)
        return "-" if cell is None else f"{cell:,}"

    cells = [[shown_cell(cell) for cell in row] for row in rows]
    shown = [n for n, name in enumerate(columns) if name.strip() or any(row[n] for row in cells)]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in (columns[n] for n in shown):
        right = column.startswith(">")
        table.add_column(
            Text(column.lstrip(">")),
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in cells:
        table.add_row(*(Text(row[n]) for n in shown))
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


# -- progress ------------------------------------------------------------------------------------


@contextlib.contextmanager
def status_line(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """One line on stderr that says what runs now; nothing when nobody watches."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(escape(text))


@contextlib.contextmanager
def run_line(*, quiet: bool, step: bool) -> Iterator[Watch]:
    """A status line for benchmark runs. `step`: the run simulates a step, so stalls mean something.

    Without a step the loader is asked for the next batch at once, and the consumer always waits.
    """
    with status_line(quiet=quiet) as show:
        yield lambda title, sight: show(run_text(title, sight, step=step))


def run_text(title: str, sight: Any, *, step: bool) -> str:
    """What is seen of a run, in one line."""
    rate = f", {sight.samples_per_s:,.0f} samples/s" if sight.samples_per_s else ""
    if rate and step:
        rate += f", {sight.stalled:.0%} stalled"
    return f"{title}: {sight.phase}{rate}, {sight.anonymous / 1e6:,.0f} MB"


@contextlib.contextmanager
def progress_bar(verb: str, unit: str) -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar on stderr, moved by calling it with (done, total, name); None when nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn(verb + " {task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, name: bar.update(
            task, completed=done, total=total, description=name
        )


def print_resume_hint() -> None:
    """After an interruption: the command that resumes, which is this one without `--again`."""
    words = ["headrace", *(each for each in sys.argv[1:] if each != "--again")]
    print(f"interrupted; to resume: {shlex.join(words)}", file=sys.stderr)
