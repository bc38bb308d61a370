"""Pictures and numbers of every validation: files, and images for the loggers that take them."""

from __future__ import annotations

import logging
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from numpy.typing import NDArray
from torch import Tensor

from headrace.errors import UsageError
from headrace.measure import theme, write_json
from headrace.recipes.laq import pictures
from headrace.recipes.laq.model import Laq, LaqOutput, Transfer, latent_transfer
from headrace.recipes.laq.pictures import (
    action_dots,
    code_bars,
    code_usage,
    picture,
    sequence_bars,
    sequence_usage,
)
from headrace.recipes.laq.step import provenance
from headrace.recipes.training.loggers import logged_step
from headrace.recipes.training.run_folder import read_rows, write_rows

_log = logging.getLogger("headrace")

_DOTS = 500  # actions drawn: more only cover one another
_DATASET_ROWS = 4  # samples in the picture of a dataset


# -- errors of the predicted frame -----------------------------------------------------------------


class FrameErrors:
    """Mean squared errors of the prediction of t+k and of a copy of frame t, by dataset.

    Pixels are in [0, 1]. Sums stay on the device, so that nothing waits for it.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sums: Tensor | None = None  # [datasets, 3]: errors, errors of the copy, samples

    def add(self, batch: Mapping[str, Any], output: LaqOutput) -> tuple[Tensor, Tensor] | None:
        """Add a batch; the two errors of its samples, or None if the model predicts no pixels."""
        recon, frames = output.recon, batch["frames"]
        if recon is None:
            return None
        first, last = _unit(frames[:, :, 0]), _unit(frames[:, :, -1])
        error = (recon.float() - last).square().flatten(1).mean(1)
        copy = (first - last).square().flatten(1).mean(1)
        rows = torch.stack([error, copy, torch.ones_like(error)], 1).double()  # [B, 3]
        dataset = batch.get("dataset")
        names = ("all",) if dataset is None else tuple(batch["names"])
        if dataset is None:
            dataset = torch.zeros(len(error), dtype=torch.int64)
        if self._sums is None or names != self._names:
            self._names = names
            self._sums = torch.zeros(len(names), 3, dtype=torch.float64, device=error.device)
        self._sums.index_add_(0, dataset.to(error.device), rows)
        return error, copy

    def by_dataset(self) -> dict[str, tuple[float, float]]:
        """Mean error of the prediction and of the copy, of every dataset that was seen."""
        if self._sums is None:
            return {}
        rows = zip(self._names, self._sums.tolist(), strict=True)
        return {n: (error / count, copy / count) for n, (error, copy, count) in rows if count}


# -- samples that are kept for pictures ------------------------------------------------------------


@dataclass(slots=True)
class Samples:
    """What is kept of one dataset."""

    frames: list[NDArray[np.uint8]] = field(default_factory=list)  #: [3, 2, H, W]
    recon: list[NDArray[np.uint8]] = field(default_factory=list)  #: [3, H, W]
    codes: list[NDArray[np.int64]] = field(default_factory=list)  #: [codes]
    actions: list[NDArray[np.float32]] = field(default_factory=list)  #: [A]
    origins: list[dict[str, Any]] = field(default_factory=list)  #: of the frames: draw, episode

    def indices(self) -> NDArray[np.int64]:
        """The codes kept, [N, codes]."""
        return np.stack(self.codes)


class SampleStore:
    """The first samples of every dataset, within fixed bounds of memory.

    Pictures are few (`pictures` a dataset, and `bytes` in all, shared evenly between the
    datasets); codes and actions are small and more are kept (`points` a dataset). A batch without
    dataset numbers belongs to the dataset "all".
    """

    def __init__(
        self, pictures: int = 8, points: int = 2048, datasets: int = 64, bytes: int = 128 << 20
    ) -> None:
        self._pictures, self._points, self._datasets = pictures, points, datasets
        self._bytes = bytes
        self._kept: dict[str, Samples] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def items(self) -> list[tuple[str, Samples]]:
        """What is kept of each dataset, in the order of names."""
        return sorted(self._kept.items())

    def first(self, count: int) -> list[tuple[str, int]]:
        """The first samples with pictures, one of each dataset in turn: (dataset, number)."""
        deepest = max((len(kept.frames) for kept in self._kept.values()), default=0)
        turns = [(n, i) for i in range(deepest) for n, k in self.items() if i < len(k.frames)]
        return turns[:count]

    def frames_of(self, chosen: list[tuple[str, int]]) -> NDArray[np.uint8]:
        """Frames [B, 3, 2, H, W] of some samples."""
        return np.stack([self._kept[name].frames[i] for name, i in chosen])

    def recon_of(self, chosen: list[tuple[str, int]]) -> NDArray[np.uint8] | None:
        """Predictions [B, 3, H, W] of some samples; None if the model makes none."""
        if any(i >= len(self._kept[name].recon) for name, i in chosen):
            return None
        return np.stack([self._kept[name].recon[i] for name, i in chosen])

    def clear(self) -> None:
        """Forget everything, for the next validation."""
        self._kept.clear()

    def add(self, batch: Mapping[str, Any], output: LaqOutput) -> None:
        """Keep what there is room for of a batch; only that is copied from the device."""
        count = len(output.indices)
        numbers = batch["dataset"].tolist() if "dataset" in batch else None
        names = ["all"] * count if numbers is None else [batch["names"][n] for n in numbers]
        indices = output.indices.cpu().numpy()
        actions = batch["action"].cpu() if "action" in batch else None
        room = self._room(batch, output)
        show: list[tuple[int, Samples]] = []
        for i, name in enumerate(names):
            if name not in self._kept and len(self._kept) >= self._datasets:
                continue
            kept = self._kept.setdefault(name, Samples())
            if len(kept.codes) < self._points:
                kept.codes.append(indices[i].copy())
                if actions is not None:
                    # Of a chunk of actions, the sum is what the window shows.
                    action = actions[i].reshape(-1, actions.shape[-1]).sum(0)
                    kept.actions.append(action.numpy().copy())
            waiting = sum(other is kept for _, other in show)
            if len(kept.frames) + waiting < room:
                show.append((i, kept))
        if not show:
            return
        rows, origins = [i for i, _ in show], provenance(batch)
        frames, recon = _as_bytes(batch["frames"][rows]), output.recon
        made = None if recon is None else _as_bytes(recon[rows])
        for k, (_, kept) in enumerate(show):
            kept.frames.append(frames[k])
            kept.origins.append({**(origins[rows[k]] if origins else {}), **_words(batch, rows[k])})
            if made is not None:
                kept.recon.append(made[k])

    def _room(self, batch: Mapping[str, Any], output: LaqOutput) -> int:
        """Samples of a dataset whose pictures may be kept."""
        frames = int(batch["frames"][:1].numel())
        sample = frames + (0 if output.predicted is None else frames // 2)
        datasets = min(len(batch["names"]), self._datasets) if "dataset" in batch else 1
        return min(self._pictures, self._bytes // max(1, datasets * sample))


# -- the callback ----------------------------------------------------------------------------------


class ValidationPictures(Callback):
    """Draws what a `LaqTask` has learned at every validation, and logs the numbers to it.

    `folder` gets a folder for every step with reconstruction.png, transfer.png, codebook.png,
    sequences.png, actions.png and one picture of each dataset; beside them metrics.csv, and at the
    end of training progress.png. TensorBoard and Weights & Biases get the same pictures.

    What is kept for them has bounds: `pictures` samples a dataset, `bytes` in all, codes of
    `points` samples a dataset. The overview shows `tracked` samples, the same ones every time as
    long as the validation set is the same. Of a long run `keep` validations keep their pictures:
    beyond that every second one is removed, so that they still span the run.

    Training hardly waits: one picture is drawn, written and sent after each of the batches that
    follow; the next validation, or the end of training, draws what is left.

    The sanity check before the first step draws at once, the samples alone: their picture and, in a
    JSON beside it, where each comes from, its codes, and the numbers of the check.

    Only the first rank draws; val/recon_mse and val/copy_mse are of all ranks. Training is not
    changed, and a picture that cannot be written does not stop it.
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
        theme.require("The pictures of a validation")
        if min(pictures, points - pictures + 1, bytes, tracked) < 1 or keep < 2:
            raise UsageError(
                f"pictures {pictures}, points {points}, bytes {bytes}, tracked {tracked}, "
                f"keep {keep}",
                remedy="Use positive numbers, not fewer points than pictures, and keep 2 "
                "validations at least",
            )
        self.folder = Path(folder)
        self.seconds = 0.0  #: that training waited for the pictures of the last validation
        self._tracked, self._keep = tracked, keep
        self._store = SampleStore(pictures, points, bytes=bytes)
        self._errors = FrameErrors()
        self._numbers: dict[str, float] = {}
        self._later: deque[Callable[[], None]] = deque()  # pictures still to be drawn
        self._train_loss: Tensor | None = None  # sum since the last validation, on the device
        self._train_steps = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any
    ) -> None:
        """Sum up the loss for the curve without waiting for the device, and draw one picture."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            loss = loss.detach().float()
            self._train_loss = loss if self._train_loss is None else self._train_loss + loss
            self._train_steps += 1
        if self._later:
            self._later.popleft()()

    def on_validation_start(self, *_: Any) -> None:
        """Forget the last validation."""
        self._draw_rest()
        self._store.clear()
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
        if not isinstance(output, LaqOutput):
            return
        if (errors := self._errors.add(batch, output)) is not None:
            error, copy = errors
            means = {"val/recon_mse": error.mean(), "val/copy_mse": copy.mean()}
            pl_module.log_dict(means, on_epoch=True, batch_size=len(error), sync_dist=True)
        if trainer.global_rank == 0:
            self._store.add(batch, output)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the numbers and queue the pictures."""
        if trainer.global_rank != 0 or not len(self._store):
            return
        started = perf_counter()
        model = pl_module.model
        assert isinstance(model, Laq)
        if trainer.sanity_checking:
            self._numbers = self._count(model.config.codebook_size, None)
            return
        tracked = self._store.first(self._tracked)
        transfer = None
        if len(tracked) > 1 and {"pixel", "aux"} & set(model.decoders):
            frames = torch.from_numpy(self._store.frames_of(tracked)).to(pl_module.device)
            with torch.no_grad(), trainer.precision_plugin.forward_context():
                transfer = latent_transfer(model, frames)
        self._numbers = self._count(model.config.codebook_size, transfer)
        pl_module.log_dict(self._numbers, rank_zero_only=True)
        self._queue(trainer, model.config.codebook_size, tracked, transfer)
        self._store.clear()
        self.seconds = perf_counter() - started

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the numbers of this step, by now with the loss, to metrics.csv."""
        if trainer.state.fn != "fit":
            self._draw_rest()  # no batches follow
        if not self._numbers:
            return
        known = trainer.callback_metrics
        values = {n: float(v) for n, v in known.items() if n.startswith("val/")} | self._numbers
        if trainer.sanity_checking:
            self._numbers, model = {}, pl_module.model
            assert isinstance(model, Laq)
            with _warned():
                self._write_samples(trainer.global_step, model.config.codebook_size, values)
            return
        if self._train_loss is not None:
            values["train/loss"] = float(self._train_loss) / self._train_steps
        self._train_loss, self._train_steps, self._numbers = None, 0, {}
        step, file = trainer.global_step, self.folder / pictures.METRICS
        with _warned():
            self.folder.mkdir(parents=True, exist_ok=True)
            # A resumed run writes over what came after its checkpoint.
            earlier = [row for row in read_rows(file) if row["step"] < step]
            write_rows(file, [*earlier, {"step": step, **values}])

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        """Draw the rest, and the course of the run."""
        self._finish(trainer)

    def on_exception(self, trainer: Trainer, *_: Any) -> None:
        """The same when training is stopped."""
        self._finish(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The loss since the last validation, so that a resumed run has the same curve."""
        loss = None if self._train_loss is None else float(self._train_loss)
        return {"train_loss": loss, "train_steps": self._train_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the sum of a checkpoint."""
        loss = state_dict["train_loss"]
        self._train_loss = None if loss is None else torch.tensor(loss)
        self._train_steps = state_dict["train_steps"]

    def _finish(self, trainer: Trainer) -> None:
        self._draw_rest()
        if trainer.global_rank == 0 and pictures.step_folders(self.folder):
            with _warned():
                pictures.progress_strip(self.folder)

    def _count(self, codebook_size: int, transfer: Transfer | None) -> dict[str, float]:
        kept = self._store.items()
        every = np.concatenate([samples.indices() for _, samples in kept])
        codes, sequences = code_usage(every, codebook_size), sequence_usage(every, codebook_size)
        numbers = {
            "val/codebook_utilisation": codes.utilisation,
            "val/codebook_entropy": codes.entropy,
            "val/sequences": float(sequences.unique),
            "val/sequence_entropy": sequences.entropy,
        }
        if transfer is not None:
            numbers["val/transfer_mse"] = transfer.transfer_mse
            numbers["val/self_mse"] = transfer.self_mse
            numbers["val/transfer_ratio"] = transfer.ratio
            if transfer.feature_ratio is not None:
                numbers["val/feature_transfer_ratio"] = transfer.feature_ratio
        if len(kept) == 1:
            return numbers
        for name, (error, copy) in self._errors.by_dataset().items():
            numbers[f"val/recon_mse/{name}"] = error
            numbers[f"val/copy_mse/{name}"] = copy
        for name, samples in kept:
            own = samples.indices()
            numbers[f"val/codebook_entropy/{name}"] = code_usage(own, codebook_size).entropy
            numbers[f"val/sequences/{name}"] = float(sequence_usage(own, codebook_size).unique)
        return numbers

    def _queue(
        self,
        trainer: Trainer,
        codebook_size: int,
        tracked: list[tuple[str, int]],
        transfer: Transfer | None,
    ) -> None:
        """Queue the pictures; each holds the arrays that it is drawn from."""
        kept = self._store.items()
        folder = self.folder / f"step_{trainer.global_step:08d}"
        logged, title = logged_step(trainer), f"step {trainer.global_step:,}"
        frames, recon = self._store.frames_of(tracked), self._store.recon_of(tracked)
        with _warned():
            self._make_room(trainer.global_step)
            if recon is not None:
                pictures.save_png(pictures.image_tiles(frames, recon), folder / pictures.SAMPLES)

        def publish(name: str, draw: Callable[[], pictures.Image]) -> None:
            image = draw()
            with _warned():
                pictures.save_png(image, folder / f"{name}.png")
            _log_image(trainer, f"val/{name}", image, logged)

        def queue(name: str, about: str, *what: Any, **options: Any) -> None:
            draw = partial(picture, f"{about}, {title}", *what, **options)
            self._later.append(partial(publish, name, draw))

        every = np.concatenate([samples.indices() for _, samples in kept])
        queue("codebook", "codebook", plots=[code_bars(every, codebook_size)])
        queue("sequences", "sequences", plots=[sequence_bars(every, codebook_size)])
        if recon is not None:
            columns = _columns(frames, recon)
            queue("reconstruction", "reconstruction", columns, labels=[n for n, _ in tracked])
        if transfer is not None:
            donors = np.roll(frames, -1, 0)
            columns = {"donor t": donors[:, :, 0], "donor t+k": donors[:, :, -1]}
            columns |= {"t": frames[:, :, 0], "t + action": _as_bytes(transfer.moved)}
            queue("transfer", "transfer", columns)
        if dots := _dots([samples for _, samples in kept], codebook_size):
            queue("actions", "actions", plots=dots)
        for name, samples in kept:
            shown = [(name, i) for i in range(min(_DATASET_ROWS, len(samples.recon)))]
            made = self._store.recon_of(shown) if shown else None
            own = None if made is None else _columns(self._store.frames_of(shown), made)
            plots = [code_bars(samples.indices(), codebook_size), *_dots([samples], codebook_size)]
            queue(f"datasets/{name}", name, own, plots)

    def _write_samples(self, step: int, codebook_size: int, values: Mapping[str, float]) -> None:
        """The picture of the check before the first step, and what is on it."""
        tracked = self._store.first(self._tracked)
        frames, recon = self._store.frames_of(tracked), self._store.recon_of(tracked)
        columns = {"t": frames[:, :, 0], "t+k": frames[:, :, -1]}
        columns |= {} if recon is None else {"prediction": recon}
        kept = dict(self._store.items())
        every = np.concatenate([samples.indices() for samples in kept.values()])
        plots = [code_bars(every, codebook_size), *_dots([*kept.values()], codebook_size)]
        title, names = f"validation samples, step {step:,}", [name for name, _ in tracked]
        file = self.folder / f"val_samples_step{step:06d}.png"
        pictures.save_png(picture(title, columns, plots, labels=names), file)
        rows = [
            {"dataset": name, **kept[name].origins[i], "codes": kept[name].codes[i].tolist()}
            for name, i in tracked
        ]
        write_json(file.with_suffix(".json"), {"step": step, "metrics": values, "samples": rows})
        self._store.clear()

    def _draw_rest(self) -> None:
        while self._later:
            self._later.popleft()()

    def _make_room(self, step: int) -> None:
        """Remove pictures of later steps, which a resumed run finds, and surplus earlier ones."""
        earlier = pictures.step_folders(self.folder)
        surplus = [path for number, path in earlier if number >= step]
        steps = [path for number, path in earlier if number < step]
        if len(steps) >= self._keep:
            surplus += steps[1::2]
        for path in surplus:
            shutil.rmtree(path)


def _words(batch: Mapping[str, Any], row: int) -> dict[str, str]:
    return {"language": batch["language"][row]} if "language" in batch else {}


def _columns(frames: NDArray[np.uint8], recon: NDArray[np.uint8]) -> dict[str, NDArray[np.uint8]]:
    return {"t": frames[:, :, 0], "t+k": frames[:, :, -1], "prediction": recon}


def _dots(kept: list[Samples], codebook_size: int) -> list[pictures.Plot]:
    """A plot of the actions, as many of every dataset; none without actions of two numbers."""
    having = [samples for samples in kept if samples.actions]
    if not having or min(samples.actions[0].shape[-1] for samples in having) < 2:
        return []
    each = max(1, _DOTS // len(having))
    actions = np.concatenate([np.stack(samples.actions[:each])[:, :2] for samples in having])
    codes = [s.indices()[: min(each, len(s.actions)), 0] for s in having]
    return [action_dots(actions, np.concatenate(codes), codebook_size, len(having))]


def _log_image(trainer: Trainer, name: str, image: pictures.Image, step: int) -> None:
    """Send a picture to Weights & Biases and TensorBoard.

    A logger is recognised by its methods, so that neither package need be installed.
    """
    for logger in trainer.loggers:
        if callable(log_image := getattr(logger, "log_image", None)):
            log_image(key=name, images=[image], step=step)
            continue
        writer: Any = getattr(logger, "experiment", None)
        if callable(add_image := getattr(writer, "add_image", None)):
            add_image(name, image, global_step=step, dataformats="HWC")


def _unit(frames: Tensor) -> Tensor:
    """Pixels, bytes or in [0, 1], as floats in [0, 1]."""
    return frames.float() if frames.is_floating_point() else frames.float() / 255


def _as_bytes(values: Tensor) -> NDArray[np.uint8]:
    """Pixels, bytes or in [0, 1], as bytes on the host."""
    if values.dtype != torch.uint8:
        values = values.float().clamp(0, 1).mul(255).round().to(torch.uint8)
    return values.cpu().numpy()


@contextmanager
def _warned() -> Iterator[None]:
    """A picture is not worth losing a run: one that cannot be written is a warning."""
    try:
        yield
    except (OSError, UsageError) as error:
        _log.warning("pictures of the validation: %s", error)
