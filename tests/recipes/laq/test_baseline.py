"""Training on a baseline's batches: the same program, tensors and records as on headrace's own."""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")
pytest.importorskip("hydra")

from headrace.cli.main import main  # noqa: E402
from headrace.config import Mixture  # noqa: E402
from headrace.loader import LoaderOptions  # noqa: E402
from headrace.outputs.lightning import HeadraceDataModule  # noqa: E402
from headrace.recipes.training.baseline import BaselineData  # noqa: E402
from tests.recipes.laq.conftest import NAMES  # noqa: E402
from tests.recipes.laq.test_program import SMALL  # noqa: E402

TRAIN = ["train", "experiment=laq_debug", *SMALL, "data.backend=tfdata"]


@pytest.fixture
def tensorflow():
    pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_datasets")


@pytest.mark.usefixtures("tensorflow")
def test_a_baseline_gives_the_tensors_of_the_loader(mixture):
    options = LoaderOptions(batch_size=4, image_size=32, workers=0, keep_free=0, action="sum")
    loaded = Mixture.load(mixture)
    ours = HeadraceDataModule(loaded, options)
    theirs = BaselineData("tfdata", loaded, options, {"mixing.strategy": "python"}, 2)
    for data in (ours, theirs):
        data.setup("fit")
    told = []
    theirs.on_batch = lambda waited, samples: told.append((waited, samples))
    pairs = [(next(iter(ours.train_dataloader())), next(theirs.train_dataloader()))]
    pairs += [(next(iter(ours.val_dataloader())), next(iter(theirs.val_dataloader())))]
    for mine, other in pairs:
        assert set(mine) == set(other)
        for name, value in mine.items():
            if isinstance(value, torch.Tensor):
                assert (value.shape, value.dtype) == (other[name].shape, other[name].dtype), name
                assert value.stride() == other[name].stride() or name != "frames"
        assert other["names"] == mine["names"]
    assert sum(1 for _ in theirs.val_dataloader()) == 2
    assert sum(1 for _ in theirs.val_dataloader()) == 2  # a pass of its own each time
    assert theirs.shares == pytest.approx(ours.shares)
    assert told == [(theirs.waited_s, 4)]
    assert theirs.waited_s > 0
    for data in (ours, theirs):
        data.teardown("fit")


@pytest.mark.usefixtures("tensorflow")
def test_a_run_on_tfdata_has_the_records_of_any_other(mixture, tmp_path, capsys):
    words = ["training.steps=4", "training.val_every=2", "training.sanity_val_batches=1"]
    words += [f"data.mixture={mixture}", f"logging.runs={tmp_path}"]
    assert main([*TRAIN, *words, "data.tfdata.shuffle.global_buffer=8"]) == 0
    said = capsys.readouterr().out
    assert "data.loader.keep_free" in said  # given, and nothing of tf.data's
    assert "no position" in said
    (run,) = tmp_path.iterdir()
    result = json.loads((run / "result.json").read_text())
    assert (result["status"], result["backend"], result["steps"]) == ("complete", "tfdata", 4)
    assert {name: share["asked"] for name, share in result["mixture"].items()} == dict.fromkeys(
        NAMES, 0.5
    )
    assert 0 < result["loader_share"] < 1
    assert result["profile"]["dataloader"] > 0
    assert result["samples_per_s"] > 0
    assert result["val_loss"] is not None
    evidence = json.loads((run / "doctor.json").read_text())["evidence"]
    assert evidence["batch_size"] == 4
    assert evidence["wait_s"] > 0
    assert main([*TRAIN, *words, f"training.resume={run}", "training.steps=5"]) == 0
    assert json.loads((run / "result.json").read_text())["steps"] == 5


def test_without_tensorflow_the_error_says_what_to_install(mixture, monkeypatch, capsys):
    monkeypatch.setattr("headrace.measure.baselines.baseline.find_spec", lambda name: None)
    assert main([*TRAIN, f"data.mixture={mixture}"]) == 2
    assert "pip install 'headrace[tf]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.tfdata.mixing.strategie=python"], "mixing.strategie"),
        (["data.tfdata.mixing.strategy=pyton"], "'pyton'"),
        (["data.backend=headrace", "data.tfdata.source=local"], "data.backend"),
        (["data.backend=tfdate"], "Did you mean 'tfdata'?"),
    ],
)
def test_options_of_the_baseline_are_checked_before_anything_is_imported(
    mixture,
    monkeypatch,
    capsys,
    words,
    said,
):
    monkeypatch.setattr("headrace.measure.baselines.baseline.find_spec", lambda name: name)
    assert main([*TRAIN, f"data.mixture={mixture}", *words, "--cfg"]) == 2
    assert said in capsys.readouterr().err
