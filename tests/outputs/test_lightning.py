"""The data module: Lightning's epochs, exact resume, second fits, devices, errors."""

import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import fields
from itertools import islice
from pathlib import Path

import pytest
import torch

import headrace as hr
from headrace.errors import UsageError
from headrace.loader.options import options_of, options_table
from tests.outputs.conftest import NAMES, OPTIONS, mixture_dict

pl = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.tuner import Tuner  # noqa: E402

from headrace.outputs.lightning import HeadraceDataModule  # noqa: E402
from headrace.outputs.lightning.datamodule import DataModuleOptions  # noqa: E402
from headrace.outputs.torch import TorchLoader  # noqa: E402
from headrace.outputs.torch.loader import TorchOptions  # noqa: E402
from tests.outputs.lightning_runs import Model, draws, every_step, trainer  # noqa: E402

#: Lightning warns of much that is meant so here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def modules(mixture):
    """Makes data modules."""
    return lambda **options: HeadraceDataModule(mixture, **{**OPTIONS, **options})


def test_training_and_validation_run_on_one_engine(tmp_path, plain, modules):
    model, module = Model(), modules(layout="bcthw")
    fit = trainer(tmp_path, max_steps=6, val_check_interval=3, limit_val_batches=2)
    engines = []
    model.on_validation_start = lambda: engines.append(module.loader._feed._engine)
    fit.fit(model, module)
    assert model.seen == draws(0, 6)
    expected = [batch.draws.tolist() for batch in islice(plain.validation(), 2)]
    assert model.validated == 2 * expected
    assert len(engines) == 2
    assert engines[0] is engines[1]
    assert not any(thread.is_alive() for thread in engines[0]._threads)  # closed at the end


def test_epochs_have_their_steps_and_the_sequence_continues(tmp_path, modules):
    model = Model()
    fit = trainer(tmp_path, max_epochs=3, limit_val_batches=1)
    fit.fit(model, modules(steps_per_epoch=2))
    assert model.seen == draws(0, 6)
    assert fit.current_epoch == 3
    assert len(model.validated) == 3


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ({"steps_per_epoch": 3}, {"max_epochs": 3}),
        ({"steps_per_epoch": 3}, {"max_steps": 8, "max_epochs": -1}),
        ({}, {"max_steps": 8}),  # without a length Lightning fetches one batch ahead
        ({}, {"limit_train_batches": 3, "max_epochs": 3}),
        ({"steps_per_epoch": 3}, {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1}),
    ],
)
def test_a_run_resumed_from_any_step_equals_the_uninterrupted_one(
    tmp_path, modules, module, options
):
    whole = Model()
    trainer(tmp_path, **options, **every_step(tmp_path)).fit(whole, modules(**module))
    saved = sorted(tmp_path.glob("checkpoints/*.ckpt"), key=lambda file: file.stat().st_mtime)
    assert len(saved) == len(whole.seen) >= 8
    for done in (
        1,
        3,
        5,
        len(saved) - 1,
    ):  # the middle and the end of an epoch, and the last but one
        resumed = Model()
        trainer(tmp_path, **options).fit(resumed, modules(**module), ckpt_path=saved[done - 1])
        assert whole.seen[:done] + resumed.seen == whole.seen, f"from step {done}"
        assert resumed.weight.item() == pytest.approx(whole.weight.item(), rel=1e-6)


def test_a_resumed_run_may_have_another_batch_size(tmp_path, modules):
    trainer(tmp_path, max_steps=3, **every_step(tmp_path)).fit(Model(), modules())
    resumed = Model()
    checkpoint = tmp_path / "checkpoints" / "step=3.ckpt"
    fit = trainer(tmp_path, max_steps=6)
    fit.fit(resumed, modules(batch_size=6), ckpt_path=checkpoint)
    assert resumed.seen == draws(12, 3, 6)
    fit.save_checkpoint(tmp_path / "after.ckpt")  # after teardown
    again = Model()
    trainer(tmp_path, max_steps=7).fit(again, modules(), ckpt_path=tmp_path / "after.ckpt")
    assert again.seen == draws(30, 1)


def test_a_batch_whose_step_failed_is_trained_on_after_the_resume(tmp_path, modules):
    options = {"max_steps": 5}
    failing = Model(fail_at=3)
    saving = pl.callbacks.OnExceptionCheckpoint(tmp_path)
    module = modules()
    with pytest.raises(RuntimeError, match="the step failed"):
        trainer(tmp_path, enable_checkpointing=True, callbacks=[saving], **options).fit(
            failing, module
        )
    with pytest.raises(UsageError, match="from setup to teardown"):
        _ = module.loader  # closed all the same
    resumed = Model()
    checkpoint = tmp_path / "on_exception.ckpt"
    trainer(tmp_path, **options).fit(resumed, modules(), ckpt_path=checkpoint)
    assert failing.seen + resumed.seen == draws(0, 5)


@pytest.mark.parametrize("change", [{"seed": 1}, {"weight": 0.5}, {"name": "bridge"}])
def test_a_checkpoint_of_another_mixture_is_refused_before_training(
    tmp_path, modules, mixture, change
):
    trainer(tmp_path, max_steps=1, **every_step(tmp_path)).fit(Model(), modules())
    values = mixture_dict(mixture.root)
    options, expected = {}, "source 'bridge' was removed"
    if "seed" in change:
        options, expected = change, "seed was 0, is 1"
    elif "weight" in change:
        values["sources"][0] |= change
        expected = "source 'bridge': places was"
    else:
        values["sources"].pop(0)
    other = HeadraceDataModule(hr.Mixture.from_dict(values), **{**OPTIONS, **options})
    model = Model()
    with pytest.raises(UsageError, match=f"belongs to another sequence.*{expected}"):
        trainer(tmp_path, max_steps=9).fit(
            model, other, ckpt_path=tmp_path / "checkpoints" / "step=1.ckpt"
        )
    assert model.seen == []


def test_weights_of_another_mixture_may_be_validated(tmp_path, modules):
    trainer(tmp_path, max_steps=1, **every_step(tmp_path)).fit(Model(), modules())
    model, checkpoint = Model(), tmp_path / "checkpoints" / "step=1.ckpt"
    validating = trainer(tmp_path, limit_val_batches=2)
    validating.validate(model, modules(seed=5), ckpt_path=checkpoint)
    assert len(model.validated) == 2


def test_a_checkpoint_of_a_plain_loader_is_resumed_and_one_without_a_position_warns(
    tmp_path, modules, mixture, caplog
):
    with TorchLoader(mixture, steps_per_epoch=4, **OPTIONS) as loader:
        fit = trainer(tmp_path, max_steps=2, **every_step(tmp_path))
        fit.fit(Model(), loader)
    resumed = Model()
    checkpoint = tmp_path / "checkpoints" / "step=2.ckpt"
    trainer(tmp_path, max_steps=4).fit(resumed, modules(steps_per_epoch=4), ckpt_path=checkpoint)
    assert resumed.seen == draws(8, 2)
    assert "no position" not in caplog.text
    foreign = torch.load(checkpoint, weights_only=False)
    del foreign["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    torch.save(foreign, checkpoint)
    resumed = Model()
    trainer(tmp_path, max_steps=4).fit(resumed, modules(steps_per_epoch=4), ckpt_path=checkpoint)
    assert resumed.seen == draws(0, 2)
    assert "no position of this data module" in caplog.text


def test_a_second_fit_continues_and_a_new_trainer_starts_at_the_beginning(tmp_path, modules):
    model, module = Model(), modules(steps_per_epoch=2)
    fit = trainer(tmp_path, max_epochs=1)
    fit.fit(model, module)
    fit.fit_loop.max_epochs = 2
    fit.fit(model, module)
    assert model.seen == draws(0, 4)
    again = Model()
    trainer(tmp_path, max_epochs=1).fit(again, module)
    assert again.seen == draws(0, 2)


def test_an_epoch_that_is_cut_short_loses_no_batch(tmp_path, modules):
    class Impatient(Model):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 2 else None

    model = Impatient()
    trainer(tmp_path, max_epochs=2).fit(model, modules())
    assert model.seen == draws(0, 2) + draws(12, 2)  # only the refused one is missing


def test_overfitting_repeats_the_same_batches(tmp_path, modules):
    model = Model()
    trainer(tmp_path, max_epochs=3, overfit_batches=2).fit(model, modules())
    assert model.seen == 3 * draws(0, 2)


def test_the_batch_size_finder_and_what_follows_get_the_sizes_they_ask_for(tmp_path, modules):
    model, module = Model(), modules(batch_size=2)
    fit = trainer(tmp_path, max_steps=2)
    found = Tuner(fit).scale_batch_size(
        model, datamodule=module, init_val=2, max_trials=3, steps_per_trial=2
    )
    assert found == module.batch_size
    assert {len(rows) for rows in model.seen} == {2, 4, 8}
    model.seen = []
    fit.fit(model, module)
    assert model.seen == draws(0, 2, found)


def test_a_step_that_fetches_batches_itself_is_counted_by_them(tmp_path, modules):
    class Fetching(Model):
        def training_step(self, dataloader_iter):
            batches = [next(dataloader_iter)[0] for _ in range(2)]
            self.seen += [batch["draws"].tolist() for batch in batches]
            return self.weight * 0

    options = {"max_steps": 2, **every_step(tmp_path)}
    module = modules()
    trainer(tmp_path, **options).fit(Fetching(), module)
    assert module.state_dict()["draws"] == 16


def test_the_module_s_own_transfer_is_kept_and_else_batches_stay_as_they_are(tmp_path, modules):
    class Own(Model):
        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            return {**batch, "draws": batch["draws"] + 100}

    for model, first in ((Own(), 100), (Model(), 0)):
        trainer(tmp_path, max_steps=1).fit(model, modules())
        assert model.seen == draws(first, 1)
    module = modules()
    module.setup("fit")
    batch = next(iter(module.train_dataloader()))
    assert module.transfer_batch_to_device(batch, torch.device("cpu"), 0) is batch
    other = module.transfer_batch_to_device(batch, torch.device("meta"), 0)
    assert other["frames"].device.type == "meta"
    module.teardown("fit")


def test_without_a_trainer_it_is_a_loader_with_a_position(modules):
    module = modules(steps_per_epoch=7)
    assert module.state_dict() == {}
    module.setup("fit")
    batches = module.train_dataloader()
    assert len(batches) == 7
    assert [b["draws"].tolist() for b in islice(batches, 2)] == draws(0, 2)
    state = module.state_dict()
    module.teardown("fit")
    assert module.state_dict() == state
    other = modules(batch_size=2)
    other.load_state_dict(state)
    other.setup("fit")
    assert [b["draws"].tolist() for b in islice(other.train_dataloader(), 2)] == draws(8, 2, 2)
    other.teardown("fit")


def test_it_can_be_sent_to_another_process_before_it_is_set_up(modules):
    module = pickle.loads(pickle.dumps(modules()))
    assert [source.name for source in module.mixture.sources] == list(NAMES)


def test_too_little_to_validate_on_for_all_ranks_is_said(modules):
    module = modules(rank=0, world_size=40)
    module.setup("validate")
    with pytest.raises(UsageError, match="too few to give each of 40 ranks"):
        module.val_dataloader()
    module.teardown("validate")


def test_every_rank_validates_as_many_batches(modules):
    lengths = set()
    for rank in range(3):
        module = modules(rank=rank, world_size=3, batch_size=2)
        module.setup("validate")
        validation = module.val_dataloader()
        lengths.add(len(validation))
        assert len(list(validation)) == len(validation)
        module.teardown("validate")
    assert len(lengths) == 1


#: Trains with checkpoints and says each batch; one of its arguments is a checkpoint or "".
RUN = """
import json, sys
sys.path.insert(0, sys.argv[4])
from pathlib import Path
import headrace as hr
from headrace.outputs.lightning import HeadraceDataModule
from tests.outputs.lightning_runs import Model, every_step, trainer

class Telling(Model):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        print(json.dumps(self.seen[-1]), flush=True)
        return loss

    def on_train_batch_start(self, batch, batch_idx):
        if sys.argv[5] == "wait" and self.global_step == 5:
            print("waiting", flush=True)
            sys.stdin.read()

mixture = hr.Mixture.from_dict(json.loads(sys.argv[1]))
folder = Path(sys.argv[2])
data = HeadraceDataModule(
    mixture, batch_size=4, image_size=32, keep_free=0, workers=2, steps_per_epoch=4
)
trainer(folder, max_epochs=3, **every_step(folder)).fit(
    Telling(), data, ckpt_path=sys.argv[3] or None
)
"""


def test_a_run_that_was_killed_in_mid_epoch_resumes_with_the_next_batch(tmp_path, mixture):
    values = json.dumps(mixture_dict(mixture.root))
    here = os.getcwd()

    def start(checkpoint, how):
        return subprocess.Popen(
            [sys.executable, "-c", RUN, values, str(tmp_path), str(checkpoint), here, how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    with start("", "wait") as first:
        seen = []
        for line in first.stdout:
            if line.startswith("waiting"):
                break
            seen += [json.loads(line)] if line.startswith("[") else []
        first.send_signal(signal.SIGKILL)
        error = first.stderr.read()
    assert seen == draws(0, 5), error
    saved = max(tmp_path.glob("checkpoints/*.ckpt"), key=lambda file: file.stat().st_mtime)
    with start(saved, "on") as second:
        out, error = second.communicate(timeout=60)
    assert second.returncode == 0, error
    seen += [json.loads(line) for line in out.splitlines() if line.startswith("[")]
    assert seen == draws(0, 12)


def test_a_missing_lightning_names_the_feature_and_the_extra():
    code = (
        "import sys; sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\n"
        "import headrace as hr, headrace.outputs\n"
        "try:\n    import headrace.outputs.lightning\n"
        "except hr.HeadraceError as error:\n    print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "headrace.outputs.lightning" in out.stdout
    assert "pip install 'headrace[train]'" in out.stdout


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"batch_sise": 8}, "batch_size"),
        ({"steps_per_epok": 8}, "steps_per_epoch"),
        ({"decode": "gpuu"}, "gpuu"),
        ({"device": "cudaa"}, "cudaa"),
        ({"device": None, "pin": True}, "pin"),
        ({"layout": "BHWC"}, "BHWC"),
        ({"steps_per_epoch": 0}, "steps_per_epoch"),
        ({"steps_per_epoch": "5"}, "steps_per_epoch is '5'"),
        ({"batch_size": "8"}, "batch_size is '8'"),
        ({"image_size": (32, 32, 3)}, "image_size"),
        ({"layout": 3}, "layout is 3"),
    ],
)
def test_a_wrong_option_fails_when_the_data_module_is_made(mixture, wrong, named):
    with pytest.raises(UsageError, match=named) as error:
        HeadraceDataModule(mixture, **wrong)
    assert error.value.remedy


@pytest.mark.parametrize(
    ("kind", "options"),
    [(TorchLoader, TorchOptions), (HeadraceDataModule, DataModuleOptions)],
)
def test_help_lists_the_options_of_the_signature(kind, options):
    taken = inspect.signature(kind.__init__).parameters.values()
    named = {one.name: one.default for one in taken if one.kind is one.KEYWORD_ONLY}
    assert named == {field.name: field.default for field in fields(options)}
    for name, type_name, default, _ in [*options_of(options), *options_of(hr.LoaderOptions)]:
        assert f"{name}: {type_name} = {default}\n" in kind.__doc__
    page = (Path(__file__).parents[2] / "docs" / "reference" / "loader.md").read_text()
    assert options_table(TorchOptions) in page
