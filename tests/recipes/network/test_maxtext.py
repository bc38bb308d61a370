"""The launcher for MaxText, on stand-ins with the names and signatures of both its source trees.

MaxText itself needs another Python than the oldest that is supported here, and 2 GB. That the real
one runs with this launcher is written in docs/guides/grain.md.
"""

import sys
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from headrace.errors import UsageError
from headrace.recipes.network import shift_targets, token_loader, token_rows
from headrace.testing.network import shard_table
from tests.row_files import assert_same

pytest.importorskip("grain")
pytest.importorskip("jax")

from headrace.recipes.network import maxtext

# What Grain warns of is its own.
pytestmark = pytest.mark.filterwarnings("default")

LOADING = """
class MultiHostDataLoadIterator:
    def __init__(self, dataloader, global_mesh, generate_padding_batch=False):
        self.dataloader, self.local_iterator = dataloader, iter(dataloader)
    def reset(self):
        self.local_iterator = iter(self.dataloader)
    def __iter__(self):
        self.reset()
        return self
    def __next__(self):
        return next(self.local_iterator)
"""
PIPELINES = """
def make_grain_train_iterator(config, global_mesh, process_indices): ...
def make_grain_eval_iterator(config, global_mesh, process_indices): ...
def create_data_iterator(config, mesh):
    made = {"grain": (make_grain_train_iterator, make_grain_eval_iterator)}
    return tuple(make(config, mesh, [0]) for make in made["grain"])
"""
FLOPS = "def calculate_tflops_training_per_device(config, log=True): return 1e-9, 0.0, 0.0"
TRAIN = """
import numpy as np
from {pipelines} import create_data_iterator
seen = []
def main(argv):
    import {train} as here
    given = dict(each.split("=") for each in argv[1:])
    train, evaluation = create_data_iterator(here.config, None)
    for step in range(int(given["steps"])):
        seen.append(("train", {{k: np.array(v) for k, v in next(train).items()}}))
    for _ in range(2 if int(given["eval_interval"]) > 0 else 0):
        evaluation.reset()
        seen.extend(("eval", {{k: np.array(v) for k, v in b.items()}}) for b in evaluation)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """19 windows to train on, and 7 that are held out. Do not change them."""
    root = tmp_path_factory.mktemp("maxtext")
    for split, rows in (("train", 19 * 64), ("test", 7 * 64)):
        (root / split).mkdir()
        pq.write_table(shard_table(0, 0, rows), root / split / "shard.parquet")
    return root


@pytest.fixture(params=[0, 1], ids=["maxtext", "MaxText"])
def train(request, data, tmp_path, monkeypatch):
    """A stand-in of one of the trees on the path; its trainer."""
    places = {what: names[request.param] for what, names in maxtext._PLACES.items()}
    sources = {
        "loading": LOADING,
        "pipelines": PIPELINES,
        "flops": FLOPS,
        "train": TRAIN.format(**places),
    }
    for what, name in places.items():
        file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(sources[what])
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [n for n in sys.modules if n.partition(".")[0] in ("maxtext", "MaxText")]:
        monkeypatch.delitem(sys.modules, name)
    found = import_module(places["train"])
    found.config = SimpleNamespace(
        grain_train_files=str(data / "train"),
        grain_eval_files=str(data / "test"),
        grain_worker_count=0,
        grain_worker_count_eval=0,
        grain_per_worker_buffer_size=32,
        grain_per_worker_buffer_size_eval=1,
        global_batch_size_to_load=4,
        global_batch_size_to_load_eval=3,
        data_shuffle_seed=5,
        max_target_length=1024,
    )
    yield found
    for name in [n for n in sys.modules if n.partition(".")[0] in ("maxtext", "MaxText")]:
        del sys.modules[name]


def of(kind, train):
    return [batch for which, batch in train.seen if which == kind]


def test_it_trains_on_headraces_batches_and_evaluates_every_held_out_window_once(train, data):
    maxtext.run(["train", "steps=6", "eval_interval=3"])
    with token_loader(data / "train", batch_size=4, seed=5, workers=0) as loader:
        expected = [shift_targets({k: v.copy() for k, v in next(loader).items()}) for _ in range(6)]
    assert_same(of("train", train), expected)
    batches = of("eval", train)
    assert len(batches) == 2 * 3  # two passes of three batches, the last with one window of three
    assert_same(batches[:3], batches[3:])
    options = {"batch_size": 7, "seed": 5, "shuffle": "none", "workers": 0}
    with token_loader(token_rows(data / "test"), **options) as loader:
        whole = shift_targets({k: v.copy() for k, v in next(loader).items()})
    for name, values in whole.items():
        found = np.concatenate([batch[name] for batch in batches[:3]])
        np.testing.assert_array_equal(found[:7], values)
        assert not found[7:].any()  # its segments are 0: without weight in the loss


def test_an_examination_tells_its_verdict_and_neither_evaluates_nor_saves(
    train, capsys, monkeypatch
):
    monkeypatch.setattr(maxtext, "_ALONE_S", 0.1)
    maxtext.run(["train", "steps=9999", "eval_interval=3"], examine=True, peak_flops=1e12)
    shown = capsys.readouterr().out
    assert "the step waits for data" in shown
    assert "MFU" in shown
    assert "tokens/s" in shown
    assert not of("eval", train)
    assert len(of("train", train)) == maxtext._ASKED
    assert "enable_checkpointing=false" in maxtext._EXAMINATION


def test_what_cannot_be_trained_on_is_refused(train, monkeypatch):
    train.config.max_target_length = 2048
    with pytest.raises(UsageError, match="max_target_length is 2048"):
        maxtext.run(["train", "steps=1", "eval_interval=-1"])
    monkeypatch.setattr(maxtext, "_PLACES", {"pipelines": ("nowhere.to.be", "Nowhere.to.be")})
    with pytest.raises(UsageError, match="not installed"):
        maxtext.run([])
