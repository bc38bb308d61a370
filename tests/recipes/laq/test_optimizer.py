"""Which tensors decay, and how the learning rate runs."""

import math

import pytest

torch = pytest.importorskip("torch")

from headrace.recipes.laq import (  # noqa: E402
    Laq,
    LaqConfig,
    TrainingOptions,
    learning_rate,
    make_optimizer,
    make_schedule,
)


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
def test_a_training_that_cannot_be_is_refused(changes):
    with pytest.raises(ValueError, match="Use positive numbers|Keep 0"):
        TrainingOptions(**changes)
