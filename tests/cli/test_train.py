"""`headrace train` until training would begin: how it reads a command line."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("hydra")

from headrace.cli.main import main
from headrace.config import Mixture
from headrace.config.typed import plain
from headrace.measure.baselines import find_baseline
from headrace.recipes.laq.config import LaqConfig
from headrace.recipes.training.compose import OLD_KEYS, _quiet, compose, experiments
from headrace.recipes.training.options import LoadingOptions, LoggingOptions, TrainingOptions


@pytest.fixture
def train(capsys):
    def call(*arguments):
        code = main(["train", *map(str, arguments)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def config(train):
    """The config that a command line means, as JSON."""

    def call(*arguments):
        code, out, err = train(*arguments, "--cfg", "--json", "-")
        assert code == 0, err
        return json.loads(out)

    return call


def test_alone_it_lists_the_experiments(train):
    code, out, _ = train()
    assert code == 0
    names = [line.split()[0] for line in out.splitlines() if line.startswith("laq_")]
    assert names == ["laq_debug", "laq_lapa", "laq_oxe_cluster", "laq_oxe_local", "laq_small"]
    assert "two minutes" in out
    assert train("--list")[1] == out


def test_the_config_is_printed_key_by_key_without_torch(tmp_path):
    code = "import sys; from headrace.cli.main import main; code = main(sys.argv[1:]); "
    code += "print('torch' in sys.modules, 'lightning' in sys.modules); sys.exit(code)"
    words = ["train", "experiment=laq_debug", "training.steps=1e3", "--dry-run"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "steps: 1000\n" in done.stdout
    assert done.stdout.endswith("False False\n")
    assert not list(tmp_path.iterdir())  # Hydra leaves no folders


@pytest.mark.parametrize("name", [name for name in experiments() if name != "laq_debug"])
def test_every_experiment_composes(config, name, tmp_path):
    found = config(f"experiment={name}", f"data.root={tmp_path}")
    assert found["name"] == name
    assert found["data"]["root"] == str(tmp_path)


def test_groups_and_keys_are_overridden_as_users_type_them(config):
    found = config(
        "experiment=laq_oxe_local",
        "data.root=/data/oxe",
        "data.loader.batch_size=128",
        "model=small",
        "model.codes=2",
        "training.steps=1000",
        "logging.wandb=true",
        "data.defaults.split=train[:95%]",
        "data.sources.bridge.weight=0.5",
        "+name=mine",
    )
    assert found["data"]["loader"]["batch_size"] == 128
    assert found["model"] == {"preset": "small", **plain(LaqConfig.small(codes=2))}
    assert found["training"]["steps"] == 1000
    assert found["logging"]["wandb"] is True
    assert found["data"]["defaults"] == {"split": "train[:95%]"}
    assert found["name"] == "mine"


def test_the_defaults_of_the_dataclasses_are_in_the_composed_config():
    values = compose(["experiment=laq_oxe_local"]).values
    assert values["training"] == plain(TrainingOptions())
    assert values["logging"] == plain(LoggingOptions())
    shared = {"image_size": None, "seed": None, "action": "sum"}
    assert values["data"]["loader"] == {**plain(LoadingOptions()), **shared}


def test_values_may_refer_to_the_defaults_of_others(config, tmp_path):
    (tmp_path / "experiment").mkdir()
    own = tmp_path / "experiment" / "mine.yaml"
    own.write_text(
        "# @package _global_\ndefaults: [laq_debug]\ntraining: {val_every: '${training.warmup}'}\n"
    )
    given = ["experiment=mine", "--config-dir", tmp_path]
    assert config(*given, "training.warmup=9")["training"]["val_every"] == 9
    assert config(*given, "logging.every=${training.keep}")["logging"]["every"] == 3


def test_a_mixture_that_is_given_is_used_as_it_is(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("root: /data/mine\ndefaults: {val_split: train}\nsources: [{name: bridge}]\n")

    def data(*words):
        composed = compose(["experiment=laq_debug", *words])
        return composed.recipe.read(composed.experiment, composed.values).data

    given = data(f"data.mixture={file}")
    assert given.generated is None
    assert given.open_mixture() == Mixture.load(file)
    assert data(f"data.mixture={file}", "data.root=/x").open_mixture().root == Path("/x")
    inline = data("data.mixture={sources: [{name: a, path: /data/a, val_split: 'train[:1]'}]}")
    assert inline.generated is None
    (source,) = inline.open_mixture().sources
    assert (source.name, source.path, source.split) == ("a", Path("/data/a"), "train")
    some = data("data.only=[rt1,bc_z]").open_mixture()
    assert [source.name for source in some.sources] == ["bc_z", "rt1"]
    made = data()
    assert made.open_mixture().root == made.generated.folder()


def test_deprecations_between_hydra_and_omegaconf_are_not_shown_and_others_are():
    text = "register_new_resolver() is deprecated\nUse another instead."
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with _quiet():
            for module in ("hydra.core.utils", "hydra", "omegaconf.omegaconf", "hydration"):
                for category in (UserWarning, FutureWarning, DeprecationWarning):
                    warnings.warn_explicit(text, category, "a.py", 1, module)
            warnings.warn_explicit("the disk is full", UserWarning, "a.py", 1, "hydra.core")
    found = [(each.category, str(each.message)) for each in shown]
    categories = (UserWarning, FutureWarning, DeprecationWarning)
    assert found == [*((each, text) for each in categories), (UserWarning, "the disk is full")]


def test_the_guide_explains_every_key_of_the_users_scripts_and_the_new_ones_are_keys():
    page = Path(__file__).parents[2] / "docs" / "guides" / "from_scripts.md"
    rows = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| `")]
    values = compose(["experiment=laq_oxe_local"]).values
    for old, new in OLD_KEYS.items():
        told = [line for line in rows if re.search(rf"`{re.escape(old)}[`=.]", line)]
        assert any(new.removeprefix("data.") in line for line in told), old
        if new.startswith("data.tfdata."):
            assert new.removeprefix("data.tfdata.") in find_baseline("tfdata").options
        elif new and not new.startswith(("data.tfdata", "data.defaults", "model.")):
            group, _, key = new.rpartition(".")
            found = values
            for part in group.split("."):
                found = found[part]
            assert key in found


def test_an_experiment_of_ones_own_names_its_recipe(train, tmp_path):
    (tmp_path / "experiment").mkdir()
    own = tmp_path / "experiment" / "mine.yaml"
    own.write_text("# @package _global_\nrecipe: lapq\n")
    code, _, err = train("experiment=mine", "--config-dir", tmp_path)
    assert code == 2
    assert "lapq" in err
    assert "laq" in err


def test_the_loader_has_the_image_size_of_the_model_and_the_seed_of_the_run(config):
    given = ["experiment=laq_debug", "training.seed=3"]
    loader = config(*given)["data"]["loader"]
    assert (loader["image_size"], loader["seed"]) == (32, 3)
    loader = config(*given, "data.loader.seed=4", "model.image_size=64")["data"]["loader"]
    assert (loader["image_size"], loader["seed"]) == (64, 4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["experiment=laq_debg"], "Did you mean 'laq_debug'?"),
        (["training.steps=5"], "experiment=laq_debug|"),
        (["model=smal"], "Did you mean 'small'"),
        (["data=_base"], "data is '_base'"),
        (["modle=small"], "unknown key modle. Did you mean 'model'?"),
        (["training.stesp=1"], "unknown key training.stesp. Did you mean 'steps'?"),
        (["data.batch_size=8"], "Did you mean 'data.loader.batch_size'?"),
        (["model.depht=8"], "unknown key model.depht"),
        (["training.steps=many"], "training.steps is 'many'"),
        (["training.steps=0"], "training: steps is 0"),
        (["training.sanity_val_batches=2", "training.val_batches=0"], "sanity_val_batches is 2"),
        (["training.betas=[0.9]"], "training.betas is [0.9]"),
        (["training.lr=1e-4,3e-4"], "training.lr=[1e-4,3e-4]"),
        (["training.steps.x=3"], "training.steps is "),
        (["training.profiler=smple"], "training.profiler is 'smple'. Did you mean 'simple'?"),
        (["training.ema=2"], "ema is 2.0"),
        (["logging.mode=no"], "logging.mode is 'no'"),
        (["data.loader=4"], "data.loader is 4"),
        (["data.loader.image_size=64"], "data.loader.image_size is 64"),
        (["model.image_size=60"], "image_size 60"),
        (["data.loader.frames=all"], "data.loader.frames is 'all'"),
        (["data.mixture=oxe30"], "file oxe30"),
        (["training.max_steps=300"], "training.steps"),
        (["+training.max_epochs=-1"], "Leave it out"),
        (["data.prefetch_buffer=64"], "data.tfdata.prefetch.final_stream_buffer and"),
        (["data.adapter.tf.mixing.strategy=python"], "data.tfdata.mixing.strategy and"),
        (["data.adapter.tf.metadata.mode=full"], "data.loader.metadata"),
        (["data=oxe29"], "data.root=FOLDER"),
        (["data.mixture=oxe29"], "data.root=FOLDER"),
        (["data.only=[rt2]"], "Did you mean 'rt1'?"),
        (["data.only=rt1,bc_z"], "data.only=[rt1,bc_z]"),
        (["data.synth=null"], "data.mixture is null"),
        (["data.sources.bridge.weight=1"], "bridge"),
        (["data.defaults.val_split=null"], "data.defaults.val_split"),
        (["training.resume=none.ckpt"], "training.resume is 'none.ckpt'"),
        (["training.init_from=none.ckpt"], "training.init_from is 'none.ckpt'"),
        (
            ["model.features=dino", "model.teachers_required=true", "model.dino_weights=/no/d.pt"],
            "model.dino_weights is /no/d.pt",
        ),
        (["training.steps"], "'training.steps'"),
        (["data.root='a"], None),
    ],
)
def test_a_mistake_is_reported_in_one_line_with_its_key(train, words, said):
    experiment = [] if words[0].startswith(("experiment", "training.steps=5")) else ["laq_debug"]
    given = [f"experiment={each}" for each in experiment]
    code, out, err = train(*given, *words, "--cfg")
    assert code == 2
    assert err.startswith("headrace train: ")
    assert err.count("\n") == 1
    assert not out
    if said is not None:
        assert said in err


def test_a_folder_of_ones_own_adds_experiments_and_choices(config, train, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("preset: tiny\ncodes: 1\n")
    own = tmp_path / "experiment" / "mine.yaml"
    own.write_text(
        "# @package _global_\n# Mine.\ndefaults:\n  - laq_debug\n  - override /model: mine\n"
        "training: {steps: 7}\n"
    )
    found = config("experiment=mine", "--config-dir", tmp_path)
    assert (found["model"]["codes"], found["training"]["steps"]) == (1, 7)
    assert found["training"]["val_every"] == 150  # of the experiment it begins with
    assert "mine             Mine." in train("--list", "--config-dir", tmp_path)[1]
    own.write_text("# @package _global_\ntraining: {stepps: 7}\n")
    code, _, err = train("experiment=mine", "data.root=/x", "--config-dir", tmp_path)
    assert code == 2
    assert "unknown key training.stepps. Did you mean 'steps'?" in err
    own.write_text("# @package _global_\ndefaults:\n  - override /model: none\n")
    code, _, err = train("experiment=mine", "--config-dir", tmp_path)
    assert code == 2
    assert "'mine'" in err
    own.rename(tmp_path / "experiment" / "laq_debug.yaml")
    code, _, err = train("--list", "--config-dir", tmp_path)
    assert code == 2
    assert "laq_debug.yaml" in err
    code, _, err = train("--list", "--config-dir", tmp_path / "none")
    assert code == 2
    assert str(tmp_path / "none") in err
