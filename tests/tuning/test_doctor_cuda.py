"""The doctor beside a CUDA device."""

from itertools import islice

import pytest

import headrace as hr

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture
def loader(mixture):
    from headrace.outputs.torch import TorchLoader

    options = {"batch_size": 16, "image_size": 128, "keep_free": 0, "workers": 2}
    with TorchLoader(mixture, device="cuda", **options) as loader:
        yield loader


def test_copies_are_timed_on_the_device(loader):
    with hr.Doctor(loader, warmup=2, warmup_seconds=0, quiet=True, limits=False) as doctor:
        for batch in islice(loader, 12):
            batch["frames"].float().mean().item()
    size = 16 * 2 * 128 * 128 * 3
    assert loader.copying().copies >= 11
    assert 0 < doctor.evidence().copy_s < 0.1
    assert size / doctor.evidence().copy_s < 200e9  # no bus is faster: the clock tells the truth
    assert not doctor.evidence().copy_in_step


def test_a_slow_copy_in_the_loop_is_copy_bound(loader):
    """What many loops do: float frames over the bus, from memory that is not pinned."""
    far = torch.empty(64 << 20, dtype=torch.float32, device="cuda")
    near = torch.zeros(64 << 20, dtype=torch.float32)
    with hr.Doctor(loader, warmup=2, warmup_seconds=0, quiet=True) as doctor:
        for _ in islice(loader, 12):
            torch.cuda.synchronize()
            started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            started.record()
            for _ in range(8):
                far.copy_(near)
            ended.record()
            torch.cuda.synchronize()
            doctor.copied(started.elapsed_time(ended) / 1000)
    assert doctor.verdict().kind == "copy", doctor.verdict()


def test_the_headroom_waits_for_the_device(loader):
    matrix = torch.randn(8192, 8192, device="cuda")

    def step(batch):
        result = matrix
        for _ in range(10):
            result = result @ matrix
        return result

    with hr.Doctor(loader, quiet=True, limits=False) as doctor:
        found = doctor.headroom(step, steps=5)
    assert found > 10 * 2 * 8192**3 / 2e15  # no device multiplies faster
