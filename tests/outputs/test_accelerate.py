"""A loop with accelerate: it takes the loader as it is, and saves and loads its position."""

from itertools import islice

import pytest
import torch

accelerate = pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("default")  # accelerate warns of what is not installed


def train(loader, folder, steps, *, resume):
    """Train for some steps and save; the draws that were seen."""
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, prepared = accelerator.prepare(model, optimizer, loader)
    assert prepared is loader
    accelerator.register_for_checkpointing(loader)
    if resume:
        accelerator.load_state(folder)
    seen = []
    for batch in islice(loader, steps):
        loss = model(batch["frames"].float().mean((1, 2, 3, 4))[:, None] / 255).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        seen += batch["draws"].tolist()
    accelerator.save_state(folder)
    return seen


def test_an_accelerate_loop_resumes_with_the_next_batch(tmp_path, loaders):
    first = train(loaders(), tmp_path, 3, resume=False)
    second = train(loaders(batch_size=6), tmp_path, 2, resume=True)
    assert first + second == [*range(24)]
