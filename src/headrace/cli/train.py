"""`headrace train`: an experiment, from its config to a run's folder."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.output import JsonOutput, add_json_option
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.recipes.training.run_folder import Ended

HELP = "train a model of a recipe on a mixture: configs, checkpoints, profile, verdict"
DESCRIPTION = """\
Trains an experiment. Configs are composed as Hydra does it: groups (data, model, training, logging)
and single keys are overridden on the command line, and everything is checked before torch is
imported. A run's folder has its config, log, metrics, checkpoints, profile, verdict and report.

  headrace train --list
  headrace train experiment=laq_debug                        generated data, a CPU, two minutes
  headrace train experiment=laq_oxe_local data.root=/data/oxe data.loader.batch_size=128
  headrace train experiment=laq_oxe_local data.root=/data/oxe model=small training.steps=1000
  headrace train experiment=laq_debug data.backend=tfdata    the same on the tf.data baseline
  headrace train experiment=laq_debug --cfg                  what that means, key by key
  headrace train experiment=laq_debug training.resume=auto   continue its newest run
  headrace train experiment=mine --config-dir conf           experiments of your own

Ctrl-C ends a run after the current step, with a checkpoint; a second one ends it at once.
Exit code: 0 trained, 1 the run failed, 2 it could not begin, 130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", help="experiment=NAME, group=choice, key=value"
    )
    parser.add_argument("--list", action="store_true", help="list the experiments")
    parser.add_argument(
        "--cfg", "--dry-run", dest="dry", action="store_true", help="print the config and end"
    )
    parser.add_argument(
        "--config-dir",
        metavar="DIR",
        type=Path,
        action="append",
        default=[],
        help="a folder with experiment/NAME.yaml, model/NAME.yaml, ...; may be repeated",
    )
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Train; 0 if it came to its end."""
    from headrace.recipes.training.compose import compose
    from headrace.recipes.training.run_folder import RunFolder, find_resume

    if args.list or not args.overrides:
        return _list(args.config_dir)
    try:
        composed = compose(args.overrides, args.config_dir)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "hydra":
            raise
        raise UsageError(
            "training needs hydra, which is not installed", remedy="pip install 'headrace[train]'"
        ) from error
    options = composed.recipe.read(composed.experiment, composed.values)
    if args.dry:
        return _print_config(options.config(), args.json)
    runs = Path(options.runs)
    resume = find_resume(options.resume, runs, options.name)
    folder = RunFolder(runs, options.name, options.config(), resume)
    with args.json.kept_clean():
        ended = composed.recipe.train(options, folder)
    args.json.write(ended.result)
    if ended.status == "failed":
        print(f"headrace train: {ended.cause}", file=sys.stderr)
        return 1
    if ended.status == "interrupted":
        if ended.result:  # else this is not the first rank
            _print_resume_hint(args, ended)
        return 130
    return 0


def _list(folders: list[Path]) -> int:
    from headrace.recipes.training.compose import experiments

    found = experiments(folders)
    width = max(map(len, found))
    for name, experiment in found.items():
        print(f"{name:<{width}}  {experiment.about}")
    print("\nheadrace train experiment=NAME key=value ...; `headrace train --help` says more")
    return 0


def _print_config(config: dict[str, Any], json: JsonOutput) -> int:
    from headrace.config import to_yaml

    json.write(config)
    if not json.on_stdout:
        print(to_yaml(config), end="")
    return 0


def _print_resume_hint(args: argparse.Namespace, ended: Ended) -> None:
    last = ended.result.get("last_checkpoint")
    if not last:
        print("interrupted before there was a checkpoint", file=sys.stderr)
        return
    words = [each for each in args.overrides if not each.startswith("training.resume=")]
    folders = [word for each in args.config_dir for word in ("--config-dir", str(each))]
    words = ["headrace", "train", *words, f"training.resume={ended.folder}", *folders]
    print(f"interrupted; to resume: {shlex.join(words)}", file=sys.stderr)
