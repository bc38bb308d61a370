"""Operations counted from the shapes against those that torch counts."""

import pytest

torch = pytest.importorskip("torch")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from headrace.recipes.laq import Laq, LaqConfig, Teachers, step_flops  # noqa: E402
from headrace.recipes.laq.teachers import DinoV3  # noqa: E402
from tests.recipes.laq.test_model import frames, mini  # noqa: E402


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
