"""Batches on a CUDA device: the same bytes, from pinned slots that come back."""

import gc
import hashlib
from itertools import islice

import pytest
import torch

from headrace.engine.slots import ArraySpec, SharedMemory, Slot
from headrace.errors import UsageError
from headrace.outputs.torch import TorchLoader
from headrace.outputs.torch.device import CudaTarget

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def digest(tensors):
    """Everything in a batch, to the byte."""
    parts = []
    for name, value in sorted(tensors.items()):
        if isinstance(value, torch.Tensor):
            parts.append(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            parts.append(value.cpu().contiguous().numpy().tobytes())
        else:
            parts.append(repr((name, value)).encode())
    return hashlib.sha256(b"|".join(parts)).hexdigest()


@pytest.mark.parametrize("layout", ["BCTHW", "BTHWC"])
@pytest.mark.parametrize("options", [{}, {"pin": False}, {"action_chunk": 3}, {"metadata": "none"}])
def test_device_batches_equal_those_of_the_cpu(loaders, layout, options):
    cuda = loaders(device="cuda", layout=layout, batch_size=16, **options)
    options = {name: value for name, value in options.items() if name != "pin"}
    cpu = loaders(layout=layout, batch_size=16, **options)
    for there, here in zip(islice(cuda, 40), cpu, strict=False):
        tensors = [value for value in there.values() if isinstance(value, torch.Tensor)]
        assert all(tensor.device == torch.device("cuda", 0) for tensor in tensors)
        assert all(tensor.is_contiguous() for tensor in tensors)
        assert digest(there) == digest(here)


def test_batches_are_whole_under_work_that_keeps_the_device_busy(loaders):
    """The consumer never waits for the device: only the streams' order protects the bytes."""
    cuda, cpu = loaders(device="cuda", image_size=128), loaders(image_size=128)
    busy = torch.randn(4096, 4096, device="cuda")
    sums = []
    for there in islice(cuda, 60):
        for _ in range(3):
            busy = (busy @ busy).tanh()
        weights = torch.arange(there["frames"].numel(), device="cuda").view_as(there["frames"])
        sums.append((there["frames"].long() * weights).sum())
    for found, here in zip(sums, cpu, strict=False):
        frames = here["frames"]
        weights = torch.arange(frames.numel()).view(frames.shape)
        assert int(found) == int((frames.long() * weights).sum())


@pytest.mark.parametrize("shared", [SharedMemory(), None])
def test_pinned_memory_is_unpinned_when_it_is_let_go(shared):
    target = CudaTarget(torch.device("cuda", 0), "BCTHW", pin=True)
    specs = {"x": ArraySpec((1_000_001,), "uint8")}
    for _ in range(50):  # the same addresses come again: pinning a page twice would be an error
        slot = Slot(specs, shared, target.lock)
        assert torch.from_numpy(slot.arrays()["x"]).is_pinned()
        del slot


@pytest.mark.parametrize(("pin", "pinned"), [(None, True), (True, True), (False, False)])
def test_the_host_s_batches_lie_in_pinned_memory(loaders, pin, pinned):
    loader = loaders(device="cuda", pin=pin)
    next(iter(loader))
    batch = next(loader._feed)
    for array in (batch.frames, batch.dataset, batch.action, batch.episode_id):
        assert torch.from_numpy(array).is_pinned() == pinned


def test_slots_come_back_though_the_consumer_keeps_every_batch(loaders):
    loader = loaders(device="cuda", memory="32MiB")
    kept = list(islice(loader, 100))
    assert len({batch["frames"].data_ptr() for batch in kept}) == 100
    stream = loader.statistics().engine.streams[0]
    assert stream.slots <= stream.slot_limit < 20
    assert loader._ahead is not None
    assert len(loader._ahead._copying) <= 1


def test_validation_on_the_device_equals_that_of_the_cpu(loaders):
    cuda, cpu = loaders(device="cuda"), loaders()
    next(iter(cuda))
    for _ in range(2):
        there = [digest(batch) for batch in cuda.validation()]
        assert there == [digest(batch) for batch in cpu.validation()]
        assert len(there) == len(cuda.validation())


@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_state_does_not_count_the_batch_ahead(loaders, before):
    loader = loaders(device="cuda", steps_per_epoch=4)
    batches = (batch for _ in range(9) for batch in loader)
    for _ in range(before):
        next(batches)
    state = loader.state_dict()
    assert state["draws"] == before * 4
    following = [digest(batch) for batch in islice(batches, 6)]
    loader.load_state_dict(state)
    batches = (batch for _ in range(9) for batch in loader)
    assert [digest(batch) for batch in islice(batches, 6)] == following


def test_a_loader_that_is_let_go_leaves_whole_batches(mixture, loaders):
    loader = TorchLoader(mixture, batch_size=16, image_size=256, keep_free=0, device="cuda")
    batches = iter(loader)
    there = next(batches)
    del loader, batches
    gc.collect()
    assert digest(there) == digest(next(iter(loaders(batch_size=16, image_size=256))))


def test_a_device_that_is_not_there_is_refused(loaders):
    with pytest.raises(UsageError, match="CUDA devices"):
        loaders(device=f"cuda:{torch.cuda.device_count()}")
