"""The optimizer and its rate, losses that are not finite, operations of a step."""

import json
import math
import pickle

import pytest

torch = pytest.importorskip("torch")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import headrace as hr  # noqa: E402
from headrace.errors import UsageError  # noqa: E402
from headrace.recipes.laq import (  # noqa: E402
    Laq,
    LaqConfig,
    LossWatch,
    NonFiniteLossError,
    Teachers,
    TrainingOptions,
    learning_rate,
    make_optimizer,
    make_schedule,
    provenance,
    step_flops,
)
from headrace.recipes.laq.teachers import DinoV3  # noqa: E402
from tests.recipes.laq.test_model import frames, mini  # noqa: E402

# -- optimizer -----------------------------------------------------------------------------------


def test_only_tensors_of_two_and_more_dimensions_decay():
    model = Laq(LaqConfig.tiny())
    decayed, plain = make_optimizer(model, TrainingOptions()).param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.01, 0.0)
    assert all(p.ndim >= 2 for p in decayed["params"])
    assert all(p.ndim < 2 for p in plain["params"])
    count = sum(p.numel() for group in (decayed, plain) for p in group["params"])
    assert count == sum(p.numel() for p in model.parameters())
    assert decayed["betas"] == (0.9, 0.999)


def test_the_learning_rate_warms_up_falls_as_a_cosine_and_stays():
    config = TrainingOptions(steps=11_000)
    assert learning_rate(0, config) == pytest.approx(1e-7)
    assert learning_rate(499, config) == pytest.approx(5e-5)
    assert learning_rate(999, config) == pytest.approx(1e-4)
    quarter = 1e-6 + (1e-4 - 1e-6) * (1 + math.cos(math.pi / 4)) / 2
    assert learning_rate(3500, config) == pytest.approx(quarter)
    assert learning_rate(6000, config) == pytest.approx((1e-4 + 1e-6) / 2)
    assert learning_rate(11_000, config) == learning_rate(10**6, config) == pytest.approx(1e-6)
    rates = [learning_rate(step, config) for step in range(0, 11_000, 50)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_the_optimizer_follows_the_schedule():
    config = TrainingOptions(steps=30, warmup=5)
    optimizer = make_optimizer(torch.nn.Linear(2, 2), config)
    schedule = make_schedule(optimizer, config)
    for step in range(30):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(learning_rate(step, config))
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("changes", [{"steps": 0}, {"min_lr": 1.0}, {"warmup": -1}])
def test_options_out_of_range_are_refused(changes):
    with pytest.raises(UsageError, match=next(iter(changes))):
        TrainingOptions(**changes)


# -- losses that are not finite ------------------------------------------------------------------

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


def test_provenance_has_what_a_bare_batch_knows():
    bare = {"frames": BATCH["frames"], "names": (), "draws": BATCH["draws"]}
    assert provenance(bare)[3] == {"draw": 43}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_raises_with_step_samples_and_a_file(tmp_path, value):
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


# -- operations ----------------------------------------------------------------------------------


def counted_by_torch(run):
    """Operations of the matrix products and of the convolutions."""
    # Fused attention is not counted on a CPU; the plain one is.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        result = run()
    counts = {str(op): n for op, n in counter.get_flop_counts()["Global"].items()}
    convolutions = sum(n for op, n in counts.items() if "conv" in op)
    return sum(counts.values()) - convolutions, convolutions, result


#: Widths whose feed-forward needs no padding, so that the counts agree to the last product.
WIDE = {"image_size": 64, "dim": 96, "heads": 3, "head_dim": 32}


@pytest.mark.parametrize(
    "config",
    [
        mini(codes=1, **WIDE),
        mini(pixel_decoder=True, **WIDE),
        LaqConfig.lapa(patch=16, codes=2, **WIDE),
        mini(features="dino", **WIDE),
    ],
)
def test_flops_are_those_that_torch_counts(config):
    model = Laq(config, Teachers(DinoV3()))
    batch = frames(2, config.image_size)
    products, convolutions, loss = counted_by_torch(lambda: model(batch).loss)
    back, _, _ = counted_by_torch(loss.backward)
    # torch takes the backward pass of a depthwise convolution for that of a full one. It is twice
    # the forward pass, but for the teacher's, which has none.
    taught = 2 * 2 * 2 * 16 * 768 * 384 if config.features == "dino" else 0
    back += 2 * (convolutions - taught)
    counted = step_flops(config, 2)
    assert counted.forward == pytest.approx(products + convolutions, rel=1e-3)
    assert counted.backward == pytest.approx(back, rel=1e-3)


def test_a_step_of_the_full_model_is_as_heavy_as_its_weights_say():
    """Six operations a weight a token, roughly: most weights see 128 tokens or 64."""
    flops = step_flops(LaqConfig(), 1, teachers=False).total
    encoder, decoders = 201.8e6 * 128, 308.9e6 * 64
    assert flops == pytest.approx(6 * (encoder + decoders), rel=0.05)


def test_flops_grow_with_the_batch_and_utilisation_is_their_share_of_the_peak():
    one, two = (step_flops(LaqConfig(), size).total for size in (128, 256))
    assert two == pytest.approx(2 * one, rel=1e-3)
    step = step_flops(LaqConfig(), 256)
    assert step.utilisation(0.1, step.total / 0.05) == pytest.approx(0.5)
