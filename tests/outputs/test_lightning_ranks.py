"""Two processes that Lightning starts: disjoint slices, one position, another world afterwards."""

import json
import os
import subprocess
import sys

import pytest

from tests.outputs.conftest import OPTIONS, mixture_dict

pytest.importorskip("lightning.pytorch")

from headrace.outputs.lightning import HeadraceDataModule
from tests.outputs.lightning_runs import Model, draws, trainer

#: Lightning warns of much that is meant so here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SCRIPT = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import headrace as hr
from headrace.outputs.lightning import HeadraceDataModule, default_callbacks
from headrace.outputs.lightning.datamodule import TrainingBatches
from tests.outputs.lightning_runs import Model, trainer

folder = Path(sys.argv[2])
mixture = hr.Mixture.from_dict(json.loads(sys.argv[1]))
data = HeadraceDataModule(mixture, batch_size=2, image_size=32, keep_free=0, workers=1)
model = Model()
fit = trainer(
    folder, strategy="ddp", devices=2, max_steps=5, limit_val_batches=1.0, val_check_interval=5,
    callbacks=default_callbacks(folder, every_n_steps=2),
)
fit.fit(model, data)
assert type(fit.train_dataloader) is TrainingBatches  # no sampler was put around it
fit.save_checkpoint(folder / "after.ckpt")
found = {
    "seen": model.seen,
    "validated": model.validated,
    "metrics": {name: float(value) for name, value in fit.callback_metrics.items()},
}
(folder / f"rank{fit.global_rank}.json").write_text(json.dumps(found))
"""


def test_two_ranks_see_disjoint_slices_and_resume_as_one(tmp_path, data, mixture, plain):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SLURM_", "MASTER_")) and key not in ("RANK", "WORLD_SIZE")
    }
    values = json.dumps(mixture_dict(data))
    done = subprocess.run(
        [sys.executable, str(script), values, str(tmp_path), os.getcwd()],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"rank{n}.json").read_text()) for n in range(2))
    assert first["seen"] == [rows[:2] for rows in draws(0, 5)]
    assert second["seen"] == [rows[2:] for rows in draws(0, 5)]
    assert len(first["validated"]) == len(second["validated"]) > 1
    validated = sorted(x for batch in first["validated"] + second["validated"] for x in batch)
    expected = [draw for batch in plain.validation() for draw in batch.draws.tolist()]
    assert validated == expected[: len(validated)]
    assert len(expected) - len(validated) < 4  # less than one batch of all ranks is left out
    perf = first["metrics"]
    # Samples are those of both ranks.
    assert perf["perf/samples_per_sec"] == pytest.approx(4 * perf["perf/steps_per_sec"])
    records = (tmp_path / "batch_times.jsonl").read_text().splitlines()
    assert [json.loads(line)["samples"] for line in records] == [2] * 5
    assert done.stdout.count("[Step 4]") == 1  # one rank speaks
    alone = Model()
    module = HeadraceDataModule(mixture, **OPTIONS)
    trainer(tmp_path, max_steps=7).fit(alone, module, ckpt_path=tmp_path / "after.ckpt")
    assert alone.seen == draws(20, 2)
