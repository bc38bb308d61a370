"""A loss that is no number stops training and says which samples it came from."""

import json
import pickle

import pytest

torch = pytest.importorskip("torch")

import headrace as hr  # noqa: E402
from headrace.recipes.laq import LossWatch, NonFiniteLossError, provenance  # noqa: E402

BATCH = {
    "frames": torch.zeros(4, 3, 2, 8, 8, dtype=torch.uint8),
    "names": ("bridge", "kuka"),
    "draws": torch.tensor([40, 41, 42, 43]),
    "dataset": torch.tensor([0, 1, 1, 0], dtype=torch.int32),
    "episode_id": torch.tensor([(2 << 32) + 7, 5, 6, 7]),
    "frame_idx": torch.tensor([11, 0, 1, 2], dtype=torch.int32),
    "offset": torch.tensor([5, 5, 3, 5], dtype=torch.int32),
}


def test_provenance_names_dataset_episode_and_frame_of_every_sample():
    samples = provenance(BATCH)
    assert len(samples) == 4
    first = {"draw": 40, "dataset": "bridge", "episode_id": (2 << 32) + 7}
    assert samples[0] == {**first, "shard": 2, "record": 7, "frame": 11, "offset": 5}
    assert json.loads(json.dumps(samples)) == samples


def test_provenance_says_what_a_bare_batch_knows():
    bare = {"frames": BATCH["frames"], "names": (), "draws": BATCH["draws"]}
    assert provenance(bare)[3] == {"draw": 43}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_raises_with_step_samples_and_a_file(tmp_path, value):
    watch = LossWatch(tmp_path / "run")
    watch.watch(6, BATCH, torch.tensor(0.5))
    with pytest.raises(NonFiniteLossError) as raised:
        watch.watch(7, BATCH, torch.tensor(value))
    text = str(raised.value)
    assert "step 7" in text
    assert "dataset bridge" in text
    assert "frame 11" in text
    path = tmp_path / "run" / "nonfinite_step_7.json"
    assert str(path) in text
    assert json.loads(path.read_text()) == {"step": 7, "samples": provenance(BATCH)}
    assert isinstance(raised.value, hr.HeadraceError)
    assert str(pickle.loads(pickle.dumps(raised.value))) == text


def test_finite_losses_leave_no_trace(tmp_path):
    watch = LossWatch(tmp_path / "run")
    for step in range(20):
        watch.watch(step, BATCH, torch.tensor(1.0))
    watch.settle()
    assert not (tmp_path / "run").exists()
