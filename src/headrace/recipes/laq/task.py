"""The model as a Lightning module; `validation` and `ema` are callbacks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from headrace.config import typed
from headrace.errors import UsageError
from headrace.outputs.torch import TorchBatch
from headrace.recipes.laq.config import LaqConfig
from headrace.recipes.laq.ema import Ema
from headrace.recipes.laq.model import Laq, LaqOutput
from headrace.recipes.laq.nsvq import replacement_due
from headrace.recipes.laq.step import LossWatch, make_optimizer, make_schedule
from headrace.recipes.training.checkpoints import CheckpointFile, check_same
from headrace.recipes.training.options import TrainingOptions

#: Steps between two values of everything that is logged, except the loss.
LOG_EVERY = 10

#: Keys of the model that its weights do not depend on.
_FREE = {"dino_weights", "flow_weights", "teachers_required", "code_std"}
_FREE |= {"replacement", "replace_below", "replace_noise"}
#: Keys that a checkpoint's optimizer brings back: new values would be ignored.
_KEPT = ("lr", "betas", "weight_decay")


class _CodebookMaintenance(Callback):
    """Replaces little-used codes, after the optimizer's step and never in validation.

    A callback and not a hook of the module, because those of checkpoints run after all other
    callbacks but before the module's hooks: a resumed run would lack a replacement.
    """

    def __init__(self) -> None:
        self._step = 0  # the last one that had its maintenance

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """The step that a checkpoint was saved at has had its maintenance."""
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Replace codes when it is time, once a step, which may have several batches."""
        assert isinstance(pl_module, LaqTask)
        step, model = trainer.global_step, pl_module.model
        if step == self._step or not replacement_due(step, model.config.replacement):
            return
        self._step = step
        before = model.nsvq.codebook.detach().clone()
        pl_module.codes_replaced += model.nsvq.replace().replaced
        replaced = (model.nsvq.codebook != before).any(1)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Ema):
                callback.restart_codes(pl_module, replaced)


class LaqTask(LightningModule):
    """Trains a `Laq` of a config, or of its plain values as a checkpoint has them.

    Logs train/... and val/...; see `LossWatch` for losses that are not finite. `folder` is where
    the samples of such a loss are listed (by default the root folder of the trainer).

    `compile` compiles the blocks: worth a slower start on a GPU, not on a CPU.
    """

    def __init__(
        self,
        model: LaqConfig | Mapping[str, Any] | None = None,
        training: TrainingOptions | Mapping[str, Any] | None = None,
        *,
        compile: bool = False,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, LaqConfig):
            model = LaqConfig.from_dict(model or {})
        if not isinstance(training, TrainingOptions):
            # Checkpoints of the first version also had the batch size among these values.
            known = {k: v for k, v in (training or {}).items() if k != "batch_size"}
            training = typed(TrainingOptions, known, "training")
        self.options = training
        self.model = Laq.build(model)
        self.save_hyperparameters(
            {"model": asdict(self.model.config), "training": asdict(self.options)}
        )
        if compile:
            self.model.compile_blocks()
        self.folder = folder  #: for the samples of a bad loss
        self._watch: LossWatch | None = None
        self.codes_replaced = 0  #: since that was logged

    def forward(self, frames: Tensor) -> LaqOutput:
        """frames [B, 3, 2, H, W], uint8 or in [0, 1]."""
        output: LaqOutput = self.model(frames)
        return output

    def training_step(self, batch: TorchBatch, _: int) -> Tensor:
        """The loss of a batch."""
        output: LaqOutput = self(batch["frames"])
        step = self.global_step + 1
        self._watcher().watch(step, batch, output.loss)
        size = len(batch["frames"])
        self.log("train/loss", output.loss.detach(), prog_bar=True, batch_size=size)
        if step % LOG_EVERY == 0:
            self.log_dict(self._values("train", output), batch_size=size)
            self.log("train/lr", self._lr(), batch_size=size)
        return output.loss

    def configure_callbacks(self) -> list[Callback]:
        """The maintenance of the codebook."""
        return [_CodebookMaintenance()]

    def validation_step(self, batch: TorchBatch, _: int) -> dict[str, Any]:
        """The same numbers under val/, and the output (a `LaqOutput`) for callbacks."""
        output: LaqOutput = self(batch["frames"])
        values = {"val/loss": output.loss} | self._values("val", output)
        self.log_dict(values, batch_size=len(batch["frames"]), sync_dist=True)
        return {"loss": output.loss, "output": output}

    def configure_optimizers(self) -> Any:
        """AdamW, and a learning rate for every step."""
        optimizer = make_optimizer(self.model, self.options)
        schedule = make_schedule(optimizer, self.options)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def configure_gradient_clipping(self, *_: Any, **options: Any) -> None:
        """By norm, to the trainer's value or that of the options.

        Done here because Lightning refuses to clip for fused optimizers.
        """
        given = options.get("gradient_clip_val")
        limit = self.options.clip if given is None else given
        nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    def on_save_checkpoint(self, _: dict[str, Any]) -> None:
        """Save no model that a bad loss has spoiled."""
        self._watcher().settle()

    def on_train_end(self) -> None:
        """Check the last losses too."""
        self._watcher().settle()

    def _values(self, stage: str, output: LaqOutput) -> dict[str, Any]:
        values: dict[str, Any] = {f"{stage}/{n}_loss": loss for n, loss in output.parts.items()}
        values[f"{stage}/vq_perplexity"] = output.perplexity
        values[f"{stage}/codebook_used"] = (output.usage > 0).sum().float()
        values[f"{stage}/codebook_min_count"] = output.usage.min().float()
        if stage == "train":
            values[f"{stage}/codebook_replaced"] = float(self.codes_replaced)
            self.codes_replaced = 0
        return values

    def _lr(self) -> float:
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        return float(optimizer.param_groups[0]["lr"])

    def _watcher(self) -> LossWatch:
        if self._watch is None:
            self._watch = LossWatch(self.folder or self.trainer.default_root_dir)
        return self._watch


def check_resumed(source: CheckpointFile, task: LaqTask) -> None:
    """Refuse to resume a checkpoint of another model, or of an optimizer with other values."""
    _check_model(source, task)
    check_same(
        source.path,
        source.config.get("training", {}),
        asdict(task.options),
        group="training",
        keys=_KEPT,
        remedy="A resumed optimizer keeps its values: give them, or start a run with these "
        f"weights (training.init_from={source.path})",
    )


def warm_start(task: LaqTask, path: str) -> None:
    """Load the weights, and nothing else, of a run of this recipe."""
    source = CheckpointFile.read(Path(path), "training.init_from")
    _check_model(source, task)
    try:
        task.load_state_dict(dict(source.weights))
    except RuntimeError as error:
        raise UsageError(
            f"training.init_from: the weights of {path} do not fit: {' '.join(str(error).split())}",
            remedy="Give a checkpoint of the same model",
        ) from None


def _check_model(source: CheckpointFile, task: LaqTask) -> None:
    check_same(
        source.path,
        source.config.get("model", {}),
        asdict(task.model.config),
        group="model",
        keys=[each.name for each in fields(LaqConfig) if each.name not in _FREE],
        remedy="Give the values it was trained with",
    )
