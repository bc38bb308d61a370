"""Pictures and numbers of every validation: files, and images for the loggers that take them."""

from __future__ import annotations

import logging
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.errors import UsageError
from headrace.outputs.lightning.framework import Callback, LightningModule, Trainer, logged_step
from headrace.recipes.laq.buckets import Bucket, Buckets, as_bytes
from headrace.recipes.laq.canvas import Image, save_png
from headrace.recipes.laq.frame_errors import FrameErrors
from headrace.recipes.laq.image_loggers import log_images
from headrace.recipes.laq.model import Laq, LaqOutput
from headrace.recipes.laq.progress import (
    METRICS,
    SAMPLES,
    add_row,
    progress_strip,
    sample_tiles,
    step_folder,
    step_folders,
)
from headrace.recipes.laq.sheets import Moved, dataset_sheet, overview_sheets, taken_in_turn
from headrace.recipes.laq.usage import Transfer, code_usage, latent_transfer, sequence_usage

__all__ = ["ValidationPictures"]

_log = logging.getLogger("headrace")


class ValidationPictures(Callback):
    """Draws what a `LaqTask` has learned at every validation, and logs the numbers to it.

    `folder` gets a folder for every step with reconstruction.png, transfer.png, codebook.png,
    sequences.png, actions.png and one picture of each dataset; beside them metrics.csv, and at the
    end of training progress.png. TensorBoard and Weights & Biases get the same pictures.

    What is kept for them has bounds: `pictures` samples a dataset, `bytes` in all, codes of
    `points` samples a dataset. The overview shows `tracked` samples, the same ones every time as
    long as the validation set is the same. Of long runs `keep` validations keep their pictures:
    beyond that every second one is removed, so that they still span the run.

    Training hardly waits: pictures are written and sent, and those of the datasets drawn, one by
    one after the batches that follow, and with the next validation or at the end what is left.

    Only the first rank draws; val/recon_mse and val/copy_mse are of all ranks. The sanity check
    draws nothing, training is not changed, and no picture that cannot be written stops it.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        pictures: int = 4,
        points: int = 2048,
        bytes: int = 128 << 20,
        tracked: int = 8,
        keep: int = 64,
    ) -> None:
        if min(pictures, points, bytes, tracked) < 1 or keep < 2:
            raise UsageError(
                f"pictures {pictures}, points {points}, bytes {bytes}, tracked {tracked}, "
                f"keep {keep}",
                remedy="Use positive numbers, and keep 2 validations at least",
            )
        self.folder = Path(folder)
        self.seconds = 0.0  #: that training waited for the pictures of the last validation
        self._tracked, self._keep = tracked, keep
        self._buckets = Buckets(pictures, points, bytes=bytes)
        self._errors = FrameErrors()
        self._numbers: dict[str, float] = {}
        self._later: deque[Callable[[], None]] = deque()  # pictures still to be drawn
        self._train_loss: Tensor | None = None  # sum since the last validation, on the device
        self._train_steps = 0

    # -- what Lightning calls ------------------------------------------------------------------

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Sum up the loss for the curve; nothing waits for the device."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            loss = loss.detach().float()
            self._train_loss = loss if self._train_loss is None else self._train_loss + loss
            self._train_steps += 1
        if self._later:
            self._later.popleft()()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A new validation."""
        self._draw_rest()
        self._buckets.clear()
        self._errors, self._numbers = FrameErrors(), {}

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep what there is room for."""
        output = outputs.get("output") if isinstance(outputs, Mapping) else None
        if trainer.sanity_checking or not isinstance(output, LaqOutput):
            return
        if (errors := self._errors.add(batch, output)) is not None:
            means = dict(
                zip(("val/recon_mse", "val/copy_mse"), (e.mean() for e in errors), strict=True)
            )
            pl_module.log_dict(means, on_epoch=True, batch_size=len(errors[0]), sync_dist=True)
        if trainer.global_rank == 0:
            self._buckets.add(batch, output)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count, draw, write and send."""
        if trainer.sanity_checking or trainer.global_rank != 0 or not len(self._buckets):
            return
        started = perf_counter()
        model = pl_module.model
        assert isinstance(model, Laq)
        with torch.no_grad(), trainer.precision_plugin.forward_context():
            moved, transfer = self._transfer(model, pl_module.device)
        self._numbers = self._count(model.config.codebook_size, transfer)
        pl_module.log_dict(self._numbers, rank_zero_only=True)
        self._draw(trainer, model.config.codebook_size, moved)
        self._buckets.clear()
        self.seconds = perf_counter() - started

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The numbers of this step, by now with the loss, into metrics.csv."""
        if trainer.state.fn != "fit":
            self._draw_rest()  # no batches follow
        if not self._numbers:
            return
        known = trainer.callback_metrics
        values = {n: float(v) for n, v in known.items() if n.startswith("val/")} | self._numbers
        if self._train_loss is not None:
            values["train/loss"] = float(self._train_loss) / self._train_steps
        self._train_loss, self._train_steps, self._numbers = None, 0, {}
        with _excused():
            add_row(self.folder / METRICS, trainer.global_step, values)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The rest, and the course of the run in a picture."""
        self._finish(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """The same when training is stopped."""
        self._finish(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The loss since the last validation, so that a resumed run has the same curve."""
        loss = None if self._train_loss is None else float(self._train_loss)
        return {"train_loss": loss, "train_steps": self._train_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on summing up."""
        loss = state_dict["train_loss"]
        self._train_loss = None if loss is None else torch.tensor(loss)
        self._train_steps = state_dict["train_steps"]

    # -- the rest ------------------------------------------------------------------------------

    def _finish(self, trainer: Trainer) -> None:
        self._draw_rest()
        if trainer.global_rank == 0 and step_folders(self.folder):
            with _excused():
                progress_strip(self.folder)

    def _transfer(self, model: Laq, device: torch.device) -> tuple[Moved | None, Transfer | None]:
        """The tracked samples, each under the action of the next one."""
        kept = dict(self._buckets.items())
        tracked = taken_in_turn(self._buckets.items(), self._tracked)
        if len(tracked) < 2 or not {"pixel", "aux"} & set(model.decoders):
            return None, None
        frames = np.stack([kept[name].frames[i] for name, i in tracked])
        transfer = latent_transfer(model, torch.from_numpy(frames).to(device))
        return Moved(frames, np.roll(frames, -1, 0), as_bytes(transfer.moved)), transfer

    def _count(self, codebook_size: int, transfer: Transfer | None) -> dict[str, float]:
        kept = self._buckets.items()
        every = np.concatenate([bucket.indices() for _, bucket in kept])
        numbers = {
            "val/codebook_utilisation": code_usage(every, codebook_size).utilisation,
            "val/codebook_entropy": code_usage(every, codebook_size).entropy,
            "val/sequences": float(sequence_usage(every, codebook_size).unique),
            "val/sequence_entropy": sequence_usage(every, codebook_size).entropy,
        }
        if transfer is not None:
            numbers["val/transfer_mse"] = transfer.transfer_mse
            numbers["val/self_mse"] = transfer.self_mse
            numbers["val/transfer_ratio"] = transfer.ratio
            if transfer.feature_ratio is not None:
                numbers["val/feature_transfer_ratio"] = transfer.feature_ratio
        if len(kept) == 1:
            return numbers
        for name, error in self._errors.by_dataset().items():
            numbers[f"val/recon_mse/{name}"] = error.recon_mse
            numbers[f"val/copy_mse/{name}"] = error.copy_mse
        for name, bucket in kept:
            codes = bucket.indices()
            numbers[f"val/codebook_entropy/{name}"] = code_usage(codes, codebook_size).entropy
            numbers[f"val/sequences/{name}"] = float(sequence_usage(codes, codebook_size).unique)
        return numbers

    def _draw(self, trainer: Trainer, codebook_size: int, moved: Moved | None) -> None:
        kept, by_name = self._buckets.items(), dict(self._buckets.items())
        tracked = taken_in_turn(kept, self._tracked)
        step, logged = trainer.global_step, logged_step(trainer)
        title = f"step {step}"
        with _excused():
            self._make_room(step)
            shown = [(name, i) for name, i in tracked if i < len(by_name[name].recon)]
            if shown:
                frames = np.stack([by_name[name].frames[i] for name, i in shown])
                recon = np.stack([by_name[name].recon[i] for name, i in shown])
                save_png(sample_tiles(frames, recon), step_folder(self.folder, step) / SAMPLES)

        def publish(name: str, sheet: Image) -> None:
            with _excused():
                save_png(sheet, step_folder(self.folder, step) / f"{name}.png")
            log_images(trainer, {f"val/{name}": sheet}, logged)

        def draw(name: str, bucket: Bucket) -> None:
            sheet = dataset_sheet(bucket, codebook_size, f"{name}, {title}")
            publish(f"datasets/{name}", sheet)

        sheets = overview_sheets(kept, tracked, moved, codebook_size, title)
        self._later.extend(partial(publish, name, sheet) for name, sheet in sheets.items())
        self._later.extend(partial(draw, name, bucket) for name, bucket in kept)

    def _draw_rest(self) -> None:
        while self._later:
            self._later.popleft()()

    def _make_room(self, step: int) -> None:
        """No pictures of later steps, as a resumed run finds them, and not too many of earlier."""
        earlier = step_folders(self.folder)
        surplus = [path for number, path in earlier if number >= step]
        steps = [path for number, path in earlier if number < step]
        if len(steps) >= self._keep:
            surplus += steps[1::2]
        for path in surplus:
            shutil.rmtree(path)


@contextmanager
def _excused() -> Iterator[None]:
    """Pictures are no reason to lose a run: what cannot be written is said and left out."""
    try:
        yield
    except (OSError, UsageError) as error:
        _log.warning("pictures of the validation: %s", error)
