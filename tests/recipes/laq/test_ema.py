"""Averaged weights: what they are, who uses them, and that a resumed run has the same."""

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")
from lightning.pytorch.callbacks import Checkpoint  # noqa: E402

from headrace.errors import UsageError  # noqa: E402
from headrace.recipes.laq.ema import Ema, decay_at  # noqa: E402
from headrace.recipes.laq.task import LaqTask  # noqa: E402
from tests.recipes.laq.runs import Losses, Seeded, loader, task, trainer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # lightning's advice on workers and the like


def weights(module):
    return {name: weight.detach().clone() for name, weight in module.named_parameters()}


def equal(some, others):
    assert some.keys() == others.keys()
    return all(torch.equal(some[name], others[name]) for name in some)


class SaveAt(Checkpoint):
    """Saves at a step; if that is not the last one, the run is killed."""

    def __init__(self, step, file):
        self._step, self._file = step, file

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self._step:
            trainer.save_checkpoint(self._file)
            if self._step < trainer.max_steps:
                raise RuntimeError("killed")


class Watch(lightning.Callback):
    """Weights after every step, and those that validation sees."""

    def __init__(self):
        self.steps, self.validated, self.after = [], [], []

    def on_train_batch_end(self, trainer, task, *_):
        self.steps.append(weights(task))

    def on_validation_batch_end(self, trainer, task, *_):
        self.validated.append(weights(task))

    def on_train_batch_start(self, trainer, task, *_):
        self.after.append(weights(task))


def test_validation_sees_the_average_and_training_goes_on_exactly_where_it_was(tmp_path):
    watch, model = Watch(), task(replacement=())
    fit = trainer(tmp_path, 4, [Seeded(), Ema(0.9), watch])
    fit.fit(model, loader(4), loader(1))
    average = watch.steps[0]
    for number, step in enumerate(watch.steps[1:], 1):
        decay = min(0.9, (1 + number) / (10 + number))
        average = {n: decay * average[n] + (1 - decay) * step[n] for n in step}
        if number == 1:
            torch.testing.assert_close(watch.validated[0], average)
    torch.testing.assert_close(watch.validated[1], average)
    assert not equal(watch.validated[1], watch.steps[3])
    assert equal(watch.after[2], watch.steps[1])  # the step after a validation
    assert equal(weights(model), watch.validated[1])  # the average, at the end


def test_training_is_the_same_with_and_without_an_average(tmp_path):
    seen = []
    for more in ([], [Ema(0.99)]):
        losses = Losses()
        trainer(tmp_path, 5, [Seeded(), losses, *more]).fit(task(), loader(5), loader(1))
        seen.append(losses.all)
    assert seen[0] == seen[1]


def test_a_checkpoint_has_the_average_and_a_resumed_run_is_the_same(tmp_path):
    def run(steps, name, **options):
        model, losses, watch = task(), Losses(), Watch()
        saved = SaveAt(steps, tmp_path / name)
        callbacks = [Seeded(), losses, watch, Ema(0.9), saved]
        fit = trainer(tmp_path, 14, callbacks, limit_val_batches=1, enable_checkpointing=True)
        fit.fit(model, loader(14, alike=True), loader(1), **options)
        return model, losses.all, watch

    model, losses, watch = run(14, "whole.ckpt")  # codes are replaced after step 10
    with pytest.raises(RuntimeError, match="killed"):
        run(9, "half.ckpt")
    again, rest, rest_watch = run(14, "again.ckpt", ckpt_path=tmp_path / "half.ckpt")
    assert rest == losses[9:]
    assert equal(weights(again), weights(model))
    assert equal(rest_watch.steps[-1], watch.steps[-1])
    assert equal(rest_watch.validated[-1], watch.validated[-1])
    loaded = LaqTask.load_from_checkpoint(tmp_path / "whole.ckpt", weights_only=True)
    assert equal(weights(loaded), watch.validated[-1])  # the last validation was after step 14
    assert not equal(weights(loaded), watch.steps[-1])
    whole, other = (torch.load(tmp_path / f"{n}.ckpt") for n in ("whole", "again"))
    for key in ("state_dict", "current_model_state", "averaging_state"):
        assert whole[key].keys() == other[key].keys()
        for name, value in whole[key].items():
            torch.testing.assert_close(other[key][name], value, rtol=0, atol=0)


def test_validating_a_checkpoint_takes_its_weights_as_they_are(tmp_path):
    model, watch = task(), Watch()
    fit = trainer(tmp_path, 4, [Ema(0.5), watch])
    fit.fit(model, loader(4), loader(1))
    fit.save_checkpoint(tmp_path / "four.ckpt")
    fit.validate(model, loader(1), verbose=False)  # those of the run so far: averaged
    with torch.no_grad():
        model.model.nsvq.codebook.add_(1)
    fit.validate(model, loader(1), ckpt_path=tmp_path / "four.ckpt", verbose=False)
    assert equal(watch.validated[-1], watch.validated[-2])


def test_a_run_without_averages_is_continued_with_them(tmp_path):
    fit = trainer(tmp_path, 2, [Seeded()])
    fit.fit(task(), loader(2), loader(1))
    fit.save_checkpoint(tmp_path / "two.ckpt")
    model, watch = task(), Watch()
    fit = trainer(tmp_path, 4, [Seeded(), Ema(0.9), watch])
    fit.fit(model, loader(4), loader(1), ckpt_path=tmp_path / "two.ckpt")
    last = watch.steps[-1]
    near = max(float((watch.validated[-1][n] - last[n]).abs().max()) for n in last)
    assert 0 < near < 0.05


def test_a_replaced_code_restarts_in_the_average(tmp_path):
    model, watch = task(replacement=((4, 5),)), Watch()
    callbacks = [Seeded(), Ema(0.9), watch, SaveAt(4, tmp_path / "four.ckpt")]
    fit = trainer(tmp_path, 4, callbacks, val_check_interval=4, enable_checkpointing=True)
    fit.fit(model, loader(4), loader(1))
    name = "model.nsvq.codebook"
    kept = torch.load(tmp_path / "four.ckpt")["current_model_state"][name]
    replaced = (kept != watch.steps[-1][name]).any(1)
    assert 0 < replaced.sum() < 8  # after the fourth step
    same = (watch.validated[-1][name] == kept).all(1)
    assert torch.equal(same, replaced)


def test_the_decay_rises_and_must_be_one():
    assert [decay_at(n, 0.5) for n in (0, 1, 8, 100)] == [0.1, 2 / 11, 0.5, 0.5]
    with pytest.raises(UsageError, match="is 1"):
        Ema(1)
