"""The training program of the latent-action model: what `headrace train experiment=laq_...` runs.

Read from top to bottom: folder, data, model, checkpoint, callbacks, trainer, training, result.
"""

from __future__ import annotations

import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger

from headrace.errors import HeadraceError, UsageError
from headrace.outputs.lightning import (
    BatchMix,
    DatasetUsage,
    HeadraceDataModule,
    Memory,
    ProgressLine,
    Throughput,
)
from headrace.outputs.lightning.callbacks import find_loader
from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer
from headrace.recipes.laq.ema import Ema
from headrace.recipes.laq.flops import step_flops
from headrace.recipes.laq.model import trainable_parameters
from headrace.recipes.laq.options import LaqRun
from headrace.recipes.laq.taken_over import check_resumed, take_weights
from headrace.recipes.laq.task import LaqTask
from headrace.recipes.laq.validation import ValidationPictures
from headrace.recipes.training.checkpoint_file import CheckpointFile
from headrace.recipes.training.checkpoints import LastCheckpoint, WholeCheckpoints
from headrace.recipes.training.devices import Devices
from headrace.recipes.training.failures import explained
from headrace.recipes.training.loggers import WandbChoice, tensorboard_logger, wandb_logger
from headrace.recipes.training.metrics import LossOfEveryStep, MetricsFile
from headrace.recipes.training.peak import peak_flops
from headrace.recipes.training.profile import StepProfile, Trace
from headrace.recipes.training.result import Ended, write_result
from headrace.recipes.training.run_folder import Resume, RunFolder, find_resume
from headrace.recipes.training.said import said_and_kept
from headrace.recipes.training.seeded_steps import SeededSteps
from headrace.recipes.training.verdict import DoctorWatch

__all__ = ["train"]


def train(plan: LaqRun) -> Ended:
    """Train; whatever happens once the folder is there ends in its result.json.

    Errors before the first step are raised, as are those that are nobody's fault but ours.
    """
    resume = find_resume(plan.training.resume, Path(plan.logging.runs), plan.name)
    source = None if resume is None else CheckpointFile.read(resume.checkpoint, "training.resume")
    if resume is not None and resume.folder is not None and source is not None:
        found = RunFolder(resume.folder).result()
        if source.step >= plan.training.steps and found.get("status") == "complete":
            print(f"{resume.folder} has its {source.step:,} steps: nothing is left to train")
            return Ended("complete", resume.folder, found)
    asked = plan.training
    devices = Devices.choose(
        asked.accelerator, asked.devices, asked.nodes, asked.strategy, asked.precision
    )
    devices.share_cpus()
    torch.manual_seed(asked.seed)
    task, notes = _task(plan, devices.precision)
    if source is not None:
        check_resumed(source, task)
    if asked.init_from is not None:
        take_weights(task, asked.init_from)
    go_on = None if resume is None else resume.folder
    run = RunFolder.begin(Path(plan.logging.runs), plan.name, plan.config(), go_on)
    with said_and_kept(run.log if run.first else None):
        return _train(plan, run, devices, task, notes, resume, source)


def _train(
    plan: LaqRun,
    run: RunFolder,
    devices: Devices,
    task: LaqTask,
    notes: list[str],
    resume: Resume | None,
    source: CheckpointFile | None,
) -> Ended:
    training, logging = plan.training, plan.logging
    tell = print if run.first else _tell_nobody
    begins = source.step if source is not None else 0
    go_on = resume is not None and resume.folder is not None

    # Data: what there is no root for is generated; the image size is the model's.
    size = plan.model.image_size
    root = None
    if plan.data.root is None and plan.data.synth is not None:
        if not plan.data.synth.folder().is_dir():
            tell(f"generating {len(plan.data.synth.only)} datasets (once)")
        root = plan.data.synth.make()
    mixture = plan.mixture(root)
    options = {"seed": training.seed, **plan.data.loader.given()}
    data = HeadraceDataModule(mixture, image_size=size, **options)

    tell(f"run: {run.path}")
    tell(_about(plan, task, devices, mixture_size=len(mixture.active), root=root))
    for note in notes:
        tell(f"note: {note}")
    if source is not None:
        tell(f"going on after step {source.step:,} of {source.path}")
    elif training.resume == "auto":
        tell("training.resume=auto: there is no checkpoint of this experiment, a new run begins")

    # Loggers.
    metrics = MetricsFile(run.path, first_step=begins, write=run.first)
    loggers: list[Logger] = [metrics, *_more_loggers(plan, run, tell)]

    # Callbacks. The profile is first, so that all that others do is no part of a step.
    batch = plan.data.loader.batch_size
    profile = StepProfile(run.profiles)
    losses = LossOfEveryStep(metrics, logging.every)
    noted = _Noted(run.path)
    peak = training.peak_flops or (
        peak_flops(torch.cuda.get_device_name()) if devices.cuda else None
    )
    doctor = DoctorWatch(
        run.path,
        flops_per_step=step_flops(task.model.config, batch).total,
        peak_flops=peak,
        limits=training.limits,
        steps=training.steps - begins,
    )
    last = LastCheckpoint(
        run.last,
        every_n_steps=training.checkpoint_every,
        minutes=training.checkpoint_minutes,
    )
    callbacks: list[Callback] = [
        *([] if training.profiler == "none" else [profile]),
        *([Trace(run.profiles)] if training.profiler == "trace" else []),
        SeededSteps(training.seed),
        noted,
        losses,
        ProgressLine(logging.print_every),
        Throughput(logging.every),
        DatasetUsage(logging.print_every),
        BatchMix(run.path, warmup=min(8, (training.steps - begins) * training.accumulate // 4)),
        Memory(logging.print_every, folder=run.path),
        doctor,
        *_pictures_and_average(plan, run),
        last,
    ]
    best = None
    if training.val_batches and training.keep:
        best = ModelCheckpoint(
            run.checkpoints,
            "step={step}-loss={val/loss:.4f}",
            monitor="val/loss",
            save_top_k=training.keep,
            save_on_train_epoch_end=False,
            auto_insert_metric_name=False,
        )
        callbacks.append(best)

    trainer = _trainer(
        accelerator=devices.accelerator,
        devices=devices.count,
        num_nodes=devices.nodes,
        strategy=devices.strategy,
        precision=devices.precision,
        max_steps=training.steps,
        max_epochs=-1,
        accumulate_grad_batches=training.accumulate,
        val_check_interval=training.val_every * training.accumulate,
        check_val_every_n_epoch=None,
        limit_val_batches=training.val_batches,
        num_sanity_val_steps=0,
        log_every_n_steps=logging.every,
        logger=loggers,
        callbacks=callbacks,
        plugins=[WholeCheckpoints(profile.saving, doctor.saving)],
        enable_progress_bar=logging.progress_bar,
        enable_model_summary=False,
        default_root_dir=run.path,
    )

    # Training. Ctrl-C ends it after a step (`last.stopped`), twice at once (SystemExit).
    status, error = "complete", None
    checkpoint = None if source is None else str(source.path)
    try:
        trainer.fit(task, data, ckpt_path=checkpoint)
        if last.stopped:
            status = "interrupted"
    except (KeyboardInterrupt, SystemExit):
        status = "interrupted"
    except Exception as caught:
        status = "failed"
        error = explained(
            caught, batch_size=batch, accumulate=training.accumulate, checkpoint=run.last
        )
        if error is None or not isinstance(caught, HeadraceError):
            with run.log.open("a") as log:
                log.write(traceback.format_exc())
        if error is None:
            error = HeadraceError(
                f"training failed: {type(caught).__name__}: {caught}",
                remedy=f"The traceback is in {run.log}",
            )
        if not noted.began and go_on:
            raise error from caught  # the run that was to go on is as it was
    cause = str(error) if error is not None else None
    if not run.first:
        return Ended(status, run.path, {}, cause)

    # Result.
    step = trainer.global_step
    if status == "interrupted":
        cause = f"stopped at step {step:,}"
    val_loss = trainer.callback_metrics.get("val/loss")
    score = None if best is None or best.best_model_score is None else float(best.best_model_score)
    evidence = None if doctor.verdict is None else doctor.verdict.to_dict()
    bad = sorted(map(str, run.artifacts.glob("nonfinite_step_*.json")))
    result = write_result(
        run.path,
        plan.name,
        status,
        cause,
        config=plan.config(),
        asked=noted.asked,
        world=trainer.world_size,
        accumulate=training.accumulate,
        own={
            "experiment": plan.experiment,
            "steps": step,
            "resumed_from": checkpoint,
            "parameters": trainable_parameters(task.model),
            "precision": devices.precision,
            "train_loss": losses.latest,
            "val_loss": None if val_loss is None else float(val_loss),
            "best_val_loss": score,
            "best_checkpoint": None if best is None else best.best_model_path or None,
            "last_checkpoint": str(run.last) if run.last.is_file() else None,
            "profile": profile.shares,
            "verdict": evidence,
            "provenance": bad[-1] if bad else None,
        },
    )
    if error is not None and not noted.began:
        raise error
    if training.profiler != "none" and profile.steps:
        tell(profile.line)
    if doctor.text and status != "failed":
        tell(doctor.text)
    tell(_ending(result, run))
    return Ended(status, run.path, result, cause)


class _Noted(Callback):
    """What the result says of the run, and the one folder of all ranks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.began = False
        self.asked: dict[str, float] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Ranks other than the first learn where the run's files are."""
        folder = Path(trainer.strategy.broadcast(str(self._folder)))
        if isinstance(pl_module, LaqTask):
            pl_module.folder = folder / "artifacts"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training begins."""
        self.began = True
        loader = find_loader(trainer)
        self.asked = {} if loader is None else dict(loader.statistics().asked)


def _task(plan: LaqRun, precision: str) -> tuple[LaqTask, list[str]]:
    """The model, and which teachers it does without."""
    config = plan.training.config(plan.data.loader.batch_size, precision)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        task = LaqTask(plan.model, config, compile=plan.training.compile)
    return task, [str(each.message) for each in caught]


def _more_loggers(plan: LaqRun, run: RunFolder, tell: Any) -> list[Logger]:
    if not run.first:
        return []
    found = [tensorboard_logger(run.path, tell)] if plan.logging.tensorboard else []
    if plan.logging.wandb:
        asked = plan.logging
        choice = WandbChoice(asked.project, run.path.name, asked.entity, asked.mode, asked.tags)
        found.append(wandb_logger(choice, run.path, plan.config(), tell))
    return [each for each in found if each is not None]


def _pictures_and_average(plan: LaqRun, run: RunFolder) -> list[Callback]:
    """Pictures of validations and an average of the weights, where they are asked for."""
    made: list[Callback] = []
    if plan.training.pictures and plan.training.val_batches:
        made.append(ValidationPictures(run.visualizations))
    if plan.training.ema is not None:
        made.append(Ema(plan.training.ema))
    return made


def _trainer(**options: Any) -> Trainer:
    try:
        return Trainer(**options)
    except Exception as error:  # Lightning's own and ValueErrors: names it does not know
        raise UsageError(
            f"Lightning refuses the training options: {' '.join(str(error).split())}",
            remedy="Correct training.precision, devices or strategy",
        ) from None


def _about(
    plan: LaqRun, task: LaqTask, devices: Devices, *, mixture_size: int, root: Path | None
) -> str:
    size, batch = plan.model.image_size, plan.data.loader.batch_size
    times = f" x {plan.training.accumulate}" if plan.training.accumulate > 1 else ""
    where = f" in {root}" if root is not None else ""
    return (
        f"data: {mixture_size} sources{where}; batch {batch}{times} of {size} x {size}\n"
        f"model: {plan.preset}, {trainable_parameters(task.model) / 1e6:.1f} M parameters, "
        f"{devices.precision} on {devices.accelerator}; {plan.training.steps:,} steps"
    )


def _ending(result: dict[str, Any], run: RunFolder) -> str:
    words = {"complete": "trained", "interrupted": "interrupted after"}
    first = f"{words.get(result['status'], 'failed after')} {result['steps']:,} steps"
    losses = [
        f"{name} {result[key]:.4f}"
        for name, key in (("train/loss", "train_loss"), ("val/loss", "val_loss"))
        if result[key] is not None
    ]
    rate = result["samples_per_s"]
    if rate:
        losses.append(f"{rate:,.0f} samples/s")
    return f"{', '.join([first, *losses])}\narchived in {run.path}"


def _tell_nobody(_: str) -> None:
    """On the ranks that are not the first."""
