"""The model and its step, on the CPU: what a token sees, what a step costs, that it learns."""

import runpy
import sys
from dataclasses import replace
from itertools import repeat

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.network_plain import memory_batches
from headrace import examine_step
from headrace.errors import UsageError
from headrace.recipes.network import prepare, token_loader
from headrace.testing.network import shard_table

jax = pytest.importorskip("jax")

from headrace.recipes.network import model  # noqa: E402
from headrace.recipes.network.config import (  # noqa: E402
    ModelConfig,
    TrainingConfig,
    step_flops,
)
from headrace.recipes.network.model import (  # noqa: E402
    count_parameters,
    init,
    learning_rate,
    logits,
    loss,
    make_step,
    new_state,
)
from headrace.recipes.network.program import examine_training, train_on  # noqa: E402

SHORT = 64
QUICK = TrainingConfig(steps=60, lr=1e-2, min_lr=1e-3, warmup=5, weight_decay=0.0)


@pytest.fixture(autouse=True, scope="module")
def compiled_in_a_hurry():
    """These programs run a few times: compiling is what takes long."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def batch():
    """Two sequences, cut short, the second padded from its middle on."""
    columns = prepare(shard_table(0, 0, 640))
    whole = next(memory_batches(columns, 2))
    cut = {name: values[:, :SHORT].copy() for name, values in whole.items()}
    for name in ("inputs", "targets", "inputs_segmentation", "targets_segmentation"):
        cut[name][1, SHORT // 2 :] = 0
    return cut


@pytest.fixture(scope="module")
def tiny():
    """A model, its parameters, and its logits as a compiled function."""
    config = ModelConfig.tiny(length=SHORT, depth=1)
    parameters = jax.jit(lambda: init(config))()
    return config, parameters, jax.jit(lambda batch: logits(parameters, batch, config))


def with_tokens(batch, change):
    tokens = batch["inputs"].copy()
    change(tokens)
    return {**batch, "inputs": tokens}


def test_a_token_sees_what_is_before_it_alone(batch, tiny):
    _, _, score = tiny
    before = np.asarray(score(batch))
    assert before.shape == (2, SHORT, 267)

    def change(tokens):
        tokens[:, 20] = (tokens[:, 20] + 1) % 267

    after = np.asarray(score(with_tokens(batch, change)))
    assert np.array_equal(before[:, :20], after[:, :20])
    assert (np.abs(before - after)[:, 20:].max(axis=-1) > 0).all()


def test_the_loss_is_that_of_the_next_token_of_the_same_segment(batch, tiny):
    config, parameters, score = tiny
    scores = np.asarray(jax.nn.log_softmax(score(batch)))
    terms = [
        -scores[i, t, batch["targets"][i, t + 1]]
        for i, end in enumerate((SHORT, SHORT // 2))
        for t in range(end - 1)
    ]
    mean = jax.jit(lambda batch: loss(parameters, batch, config))
    assert float(mean(batch)) == pytest.approx(np.mean(terms), rel=1e-5)

    def change(tokens):
        tokens[1, SHORT // 2 :] = 99

    assert float(mean(with_tokens(batch, change))) == float(mean(batch))  # padding does not count


def test_packed_segments_do_not_see_each_other(batch, tiny):
    config, parameters, score = tiny
    packed = replace(config, packed=True)
    one, two = (
        {name: values[:1] for name, values in batch.items()},
        {name: values[1:] for name, values in batch.items()},
    )
    half = SHORT // 2
    both = {name: np.concatenate([one[name][:, :half], two[name][:, :half]], 1) for name in one}
    both["inputs_segmentation"] = np.repeat([[1, 2]], half, axis=1)
    together = np.asarray(jax.jit(lambda batch: logits(parameters, batch, packed))(both))
    alone = np.asarray(score(batch))[1:]
    np.testing.assert_allclose(together[:, half:], alone[:, :half], atol=1e-5)


def test_computing_again_changes_no_gradient(batch, tiny):
    config, parameters, _ = tiny

    def gradients(parameters):
        kinds = ("none", "products", "all")
        return [jax.grad(loss)(parameters, batch, replace(config, remat=kind)) for kind in kinds]

    plain, *others = jax.jit(gradients)(parameters)
    for other in others:
        for one, two in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(one, two, atol=1e-6)


def products(jaxpr):
    """Operations of all matrix products in a computation, loops included."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            inner = int(np.prod([left[axis] for axis in contracted]))
            total += 2 * inner * int(np.prod(equation.outvars[0].aval.shape))
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            for inside in value if isinstance(value, (list, tuple)) else (value,):
                inside = getattr(inside, "jaxpr", inside)
                if hasattr(inside, "eqns"):
                    total += times * products(inside)
    return total


def test_flops_are_those_of_the_products_that_jax_computes(batch):
    config = ModelConfig.tiny(length=SHORT, depth=3)
    parameters = jax.eval_shape(lambda: init(config))
    step = jax.make_jaxpr(jax.value_and_grad(lambda p: loss(p, batch, config)))(parameters)
    counted = step_flops(config, 2)
    # XLA's attention computes all pairs, of which a causal model needs half.
    assert products(step.jaxpr) == counted.weights + 2 * counted.attention
    assert counted.utilisation(0.5, counted.total * 4) == pytest.approx(0.5)


def test_the_base_model_has_a_hundred_million_parameters_and_as_many_operations_as_they_say():
    config = ModelConfig.base()
    shapes = jax.eval_shape(lambda: init(config))
    count = count_parameters(shapes)
    assert 95e6 < count < 105e6
    flops = step_flops(config, 256)
    assert flops.weights == pytest.approx(6 * count * 256 * 1024, rel=0.01)
    assert 0.05 < flops.attention / flops.weights < 0.2


def test_training_on_the_same_batch_learns_it(batch, tiny):
    config, _, _ = tiny
    training = QUICK
    seen = []
    done = train_on(
        [batch] * 60, config, training, report=lambda step, value: seen.append((step, value))
    )
    assert [step for step, _ in seen] == [0, 10, 20, 30, 40, 50, 59]
    assert tuple(value for _, value in seen) == done.losses
    assert 5 < done.losses[0] < 6.2  # about ln 267
    assert done.losses[-1] < 0.3 * done.losses[0]
    assert int(done.state.step) == 60


def test_a_training_step_is_examined_with_its_flops(batch, tiny):
    config, _, _ = tiny
    found = examine_training(
        repeat(batch), config, 2, peak_flops=1e12, training=QUICK, steps=3, warmup=1, alone_s=0.01
    )
    assert found.mfu == pytest.approx(
        step_flops(config, 2).total / 1e12 / found.evidence.period_s, rel=1e-6
    )
    assert found.tokens_per_s == pytest.approx(2 * SHORT / found.evidence.period_s)
    assert found.loader_tokens_per_s > found.tokens_per_s


def test_a_step_over_the_recipes_own_loader_is_examined(tiny, tmp_path):
    config, _, _ = tiny
    pq.write_table(shard_table(0, 0, 6400), tmp_path / "shard_0000.parquet")
    state = new_state(config, QUICK)
    step = make_step(config, QUICK)

    def once(batch):
        nonlocal state
        state, value = step(state, {name: values[:, :SHORT] for name, values in batch.items()})
        return value

    with token_loader(tmp_path, batch_size=2, workers=0) as loader:
        found = examine_step(loader, once, steps=8, warmup=2, alone_s=0.1)
        draws = loader.statistics().draws
    assert found.evidence.batch_size == 2
    assert found.tokens == 1024
    assert found.evidence.steps >= 8
    assert draws >= 2 * (1 + 2 + 8)  # its batches, and not only the one that was replayed
    assert found.loader_tokens_per_s > 0
    assert 0 <= found.waiting < 1


def test_the_learning_rate_warms_up_and_falls():
    config = TrainingConfig(steps=2000, warmup=1000, lr=1e-3, min_lr=1e-4)
    steps = np.array([0, 499, 999, 1500, 2000, 9999])
    rates = np.asarray(jax.jit(lambda steps: learning_rate(steps, config))(steps))
    assert rates == pytest.approx(np.array([1e-6, 5e-4, 1e-3, 5.5e-4, 1e-4, 1e-4]))


def test_no_batches_and_wrong_values_are_refused(tiny):
    config, _, _ = tiny
    with pytest.raises(UsageError, match="no batch to train on"):
        train_on([], config, TrainingConfig())
    for wrong in ({"depth": 0}, {"head_dim": 5}, {"remat": "some"},
                  {"packed": True, "attention": "cudnn"}):  # fmt: skip
        with pytest.raises(UsageError):
            ModelConfig.tiny(**wrong)
    for wrong in ({"steps": 0}, {"min_lr": 1.0}):
        with pytest.raises(UsageError):
            TrainingConfig(**wrong)


def test_without_jax_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(UsageError, match=r"needs jax, which is not.*pip install 'headrace\[jax\]'"):
        runpy.run_path(model.__file__)
