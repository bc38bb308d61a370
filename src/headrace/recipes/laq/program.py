"""The training program of the latent-action model: what `headrace train experiment=laq_...` runs.

Read from top to bottom: model and checkpoint, data, callbacks, trainer, training, result.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger

from headrace.errors import HeadraceError, UsageError
from headrace.outputs.lightning import (
    BatchMix,
    DatasetUsage,
    GpuUsage,
    HeadraceDataModule,
    Memory,
    ProgressLine,
    Throughput,
)
from headrace.outputs.torch import peak_flops
from headrace.recipes.laq.ema import Ema
from headrace.recipes.laq.model import trainable_parameters
from headrace.recipes.laq.options import LaqOptions
from headrace.recipes.laq.step import step_flops
from headrace.recipes.laq.task import LaqTask, check_resumed, warm_start
from headrace.recipes.laq.validation import ValidationPictures
from headrace.recipes.training.baseline import BaselineData
from headrace.recipes.training.callbacks import DoctorWatch, SeededSteps
from headrace.recipes.training.checkpoints import (
    AtomicCheckpoints,
    CheckpointFile,
    LastCheckpoint,
)
from headrace.recipes.training.devices import Devices, explain_failure
from headrace.recipes.training.loggers import (
    LossOfEveryStep,
    MetricsFile,
    WandbChoice,
    tensorboard_logger,
    wandb_logger,
)
from headrace.recipes.training.profile import StepProfile, Trace
from headrace.recipes.training.run_folder import Ended, RunFolder, tee_output, write_result


def train(options: LaqOptions, run: RunFolder) -> Ended:
    """Train; whatever happens once the folder exists ends in its result.json.

    Errors before the first step are raised.
    """
    training = options.training
    source = None
    if run.resume is not None:
        source = CheckpointFile.read(run.resume.checkpoint, "training.resume")
        if run.continued and source.step >= training.steps:
            earlier = run.result()
            if earlier.get("status") == "complete":
                print(f"{run.continued} has its {source.step:,} steps: nothing is left to train")
                return Ended("complete", run.continued, earlier)
    devices = Devices.choose(
        training.accelerator,
        training.devices,
        training.nodes,
        training.strategy,
        training.precision,
    )
    devices.share_cpus()
    torch.manual_seed(training.seed)
    with warnings.catch_warnings(record=True) as caught:  # teachers that are missing
        warnings.simplefilter("always")
        task = LaqTask(options.model, training, compile=training.compile)
    if source is not None:
        check_resumed(source, task)
    if training.init_from is not None:
        warm_start(task, training.init_from)
    run.begin()
    with tee_output(run.log if run.first else None):
        tell: Callable[[str], None] = print if run.first else lambda _: None
        return _train(options, run, devices, task, source, tell, [str(w.message) for w in caught])


def _train(
    options: LaqOptions,
    run: RunFolder,
    devices: Devices,
    task: LaqTask,
    source: CheckpointFile | None,
    tell: Callable[[str], None],
    notes: list[str],
) -> Ended:
    training, logging = options.training, options.logging
    batch, size = options.data.loader.batch_size, options.model.image_size
    begins = 0 if source is None else source.step

    # Data.
    where, synth = "", options.data.generated
    if synth is not None:
        if not synth.folder().is_dir():
            tell(f"generating {len(synth.only)} datasets (once)")
        where = f" in {synth.make()}"
    mixture = options.data.open_mixture()
    loading = options.data.loader
    data: HeadraceDataModule | BaselineData
    if options.data.backend == "headrace":
        data = HeadraceDataModule(mixture, loading.loader(), pin=loading.pin, decode=loading.decode)
    else:
        name, given = options.data.backend, options.data.backend_options
        data = BaselineData(name, mixture, loading.loader(), given, training.val_batches)
        notes = [*notes, f"{name}, also for validation; checkpoints have no position in its data"]
        if options.data.ignored:
            keys = ", ".join(f"data.loader.{key}" for key in options.data.ignored)
            notes.append(f"{name} has no {keys}")

    times = f" x {training.accumulate}" if training.accumulate > 1 else ""
    millions = trainable_parameters(task.model) / 1e6
    tell(f"run: {run.path}")
    tell(f"data: {len(mixture.active)} sources{where}; batch {batch}{times} of {size} x {size}")
    tell(
        f"model: {options.preset}, {millions:.1f} M parameters, "
        f"{devices.precision} on {devices.accelerator}; {training.steps:,} steps"
    )
    for note in notes:
        tell(f"note: {note}")
    if source is not None:
        tell(f"resuming after step {source.step:,} of {source.path}")
    elif training.resume == "auto":
        tell("training.resume=auto: there is no checkpoint of this experiment, a new run begins")

    # Loggers.
    metrics = MetricsFile(run.path, first_step=begins, write=run.first)
    loggers: list[Logger | None] = [metrics]
    if run.first and logging.tensorboard:
        loggers.append(tensorboard_logger(run.path, tell))
    if run.first and logging.wandb:
        choice = WandbChoice(
            logging.project, run.path.name, logging.entity, logging.mode, logging.tags
        )
        loggers.append(wandb_logger(choice, run.path, options.config(), tell))

    # Callbacks. The profile is first, so that what the others do does not count as a step.
    started = _Started(run.path, data)
    losses = LossOfEveryStep(metrics, logging.every)
    profile = StepProfile(run.profiles, lambda: data.waited_s)
    flops = step_flops(task.model.config, batch).total
    peak = training.peak_flops
    if peak is None and devices.cuda:
        peak = peak_flops(torch.cuda.get_device_name())
    gpu = GpuUsage(logging.every, flops_per_step=flops, peak_flops=peak)
    doctor = DoctorWatch(
        run.path,
        data,
        gpu,
        flops_per_step=flops,
        peak_flops=peak,
        limits=training.limits,
        steps=training.steps - begins,
    )
    last = LastCheckpoint(
        run.last,
        every_n_steps=training.checkpoint_every,
        minutes=training.checkpoint_minutes,
    )
    best = ModelCheckpoint(
        run.checkpoints,
        "step={step}-loss={val/loss:.4f}",
        monitor="val/loss",
        save_top_k=training.keep,
        save_on_train_epoch_end=False,
        auto_insert_metric_name=False,
    )
    callbacks: list[Callback] = [
        *([profile] if training.profiler != "none" else []),
        *([Trace(run.profiles)] if training.profiler == "trace" else []),
        SeededSteps(training.seed),
        started,
        losses,
        ProgressLine(logging.print_every),
        Throughput(logging.every),
        DatasetUsage(logging.print_every),
        BatchMix(run.path, warmup=min(8, (training.steps - begins) * training.accumulate // 4)),
        Memory(logging.print_every, folder=run.path),
        gpu,
        doctor,
        *_pictures(options, run, tell),
        *([Ema(training.ema)] if training.ema is not None else []),
        last,
        *([best] if training.val_batches and training.keep else []),
    ]

    # Trainer.
    try:
        trainer = Trainer(
            accelerator=devices.accelerator,
            devices=devices.count,
            num_nodes=devices.nodes,
            strategy=devices.strategy,
            precision=devices.precision,  # type: ignore[arg-type]
            max_steps=training.steps,
            max_epochs=-1,
            accumulate_grad_batches=training.accumulate,
            val_check_interval=min(training.val_every, training.steps) * training.accumulate,
            check_val_every_n_epoch=None,
            limit_val_batches=training.val_batches,
            num_sanity_val_steps=training.sanity_val_batches,
            log_every_n_steps=logging.every,
            logger=[each for each in loggers if each is not None],
            callbacks=callbacks,
            plugins=[AtomicCheckpoints(profile.saving, doctor.saving)],
            enable_progress_bar=logging.progress_bar,
            enable_model_summary=False,
            default_root_dir=run.path,
        )
    except Exception as refusal:  # Lightning's own and ValueErrors: names it does not know
        raise UsageError(
            f"Lightning refuses the training options: {' '.join(str(refusal).split())}",
            remedy="Correct training.precision, devices or strategy",
        ) from None

    # Training. The first Ctrl-C ends it after a step (`last.stopped`), the second at once.
    status = "complete"
    error: HeadraceError | None = None
    try:
        trainer.fit(task, data, ckpt_path=None if source is None else str(source.path))
        if last.stopped:
            status = "interrupted"
    except (KeyboardInterrupt, SystemExit):
        status = "interrupted"
    except Exception as caught:
        status = "failed"
        error = explain_failure(
            caught, batch_size=batch, accumulate=training.accumulate, checkpoint=run.last
        )
        if not isinstance(caught, HeadraceError):
            with run.log.open("a") as log:
                log.write(traceback.format_exc())
        if error is None:
            error = HeadraceError(
                f"training failed: {type(caught).__name__}: {caught}",
                remedy=f"The traceback is in {run.log}",
            )
        if not started.began and run.continued:
            raise error from caught  # and leave the run that was to be resumed as it was

    # Result.
    step = trainer.global_step
    cause = f"stopped at step {step:,}" if status == "interrupted" else None
    if error is not None:
        cause = str(error)
    if not run.first:
        return Ended(status, run.path, {}, cause)
    val_loss = trainer.callback_metrics.get("val/loss")
    score = best.best_model_score
    bad = sorted(map(str, run.artifacts.glob("nonfinite_step_*.json")))
    result = write_result(
        run,
        status,
        cause,
        backend=options.data.backend,
        asked=started.asked,
        world=trainer.world_size,
        accumulate=training.accumulate,
        own={
            "experiment": options.experiment,
            "steps": step,
            "resumed_from": None if source is None else str(source.path),
            "parameters": trainable_parameters(task.model),
            "precision": devices.precision,
            "train_loss": losses.latest,
            "val_loss": None if val_loss is None else float(val_loss),
            "best_val_loss": None if score is None else float(score),
            "best_checkpoint": best.best_model_path or None,
            "last_checkpoint": str(run.last) if run.last.is_file() else None,
            "profile": profile.shares,
            "gpu": doctor.gpu,
            "verdict": None if doctor.verdict is None else doctor.verdict.to_dict(),
            "provenance": bad[-1] if bad else None,
        },
    )
    if error is not None and not started.began:
        raise error
    if training.profiler != "none" and profile.steps:
        tell(profile.line)
    if doctor.text and status != "failed":
        tell(doctor.text)
    words = {"complete": "trained", "interrupted": "interrupted after", "failed": "failed after"}
    line = [f"{words[status]} {step:,} steps"]
    line += [f"train/loss {losses.latest:.4f}"] if losses.latest is not None else []
    line += [f"val/loss {float(val_loss):.4f}"] if val_loss is not None else []
    line += [f"{result['samples_per_s']:,.0f} samples/s"] if result["samples_per_s"] else []
    tell(f"{', '.join(line)}\narchived in {run.path}")
    return Ended(status, run.path, result, cause)


class _Started(Callback):
    """Tells all ranks where the run's folder is, and notes whether training began."""

    def __init__(self, folder: Path, data: HeadraceDataModule | BaselineData) -> None:
        self._folder, self._data = folder, data
        self.began = False
        self.asked: dict[str, float] = {}  #: share of each source

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Ranks other than the first learn where the run's files are."""
        folder = Path(trainer.strategy.broadcast(str(self._folder)))
        if isinstance(pl_module, LaqTask):
            pl_module.folder = folder / "artifacts"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training begins."""
        self.began = True
        self.asked = self._data.shares


def _pictures(options: LaqOptions, run: RunFolder, tell: Callable[[str], None]) -> list[Callback]:
    """Pictures of validations, if they are wanted and can be drawn."""
    if not (options.training.pictures and options.training.val_batches):
        return []
    try:
        return [ValidationPictures(run.visualizations)]
    except UsageError as error:
        tell(f"note: {error}")
        return []
