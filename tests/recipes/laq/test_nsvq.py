"""The codebook: noise of the right length, gradients, counts, replacement, ranks."""

import json
import math
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from headrace.recipes.laq.config import LaqConfig  # noqa: E402
from headrace.recipes.laq.nsvq import (  # noqa: E402
    Nsvq,
    Quantized,
    replacement_due,
    substitute_noise,
)


def make(**changes):
    return Nsvq(LaqConfig.tiny(**changes))


def test_the_nearest_code_is_chosen():
    nsvq = make()
    delta = torch.randn(5, 4, 32)
    indices = nsvq.eval()(delta).indices
    for b in range(5):
        for c in range(4):
            distances = [(delta[b, c] - code).square().sum() for code in nsvq.codebook]
            assert indices[b, c] == torch.stack(distances).argmin()


def test_evaluation_gives_the_codes_and_training_noise_as_long_as_the_error():
    nsvq = make()
    delta = torch.randn(6, 4, 32)
    nsvq.eval()
    hard = nsvq(delta)
    assert torch.equal(hard.vectors, nsvq.codebook[hard.indices])
    nsvq.train()
    soft = nsvq(delta)
    assert torch.equal(soft.indices, hard.indices)
    error = (delta - hard.vectors).norm(dim=-1)
    torch.testing.assert_close((soft.vectors - delta).norm(dim=-1), error)


def test_the_noise_has_no_direction_of_its_own():
    delta = torch.zeros(40_000, 3)
    chosen = torch.tensor([2.0, 0.0, 0.0]).expand_as(delta)
    noise = substitute_noise(delta, chosen)
    assert noise.mean(0).abs().max() < 0.03  # standard error: 2 / sqrt(3 * 40000) = 0.006
    torch.testing.assert_close(
        noise.T @ noise / len(noise), torch.eye(3) * 4 / 3, atol=0.05, rtol=0
    )


def test_the_gradient_reaches_delta_and_the_chosen_codes_only():
    nsvq = make()
    delta = torch.randn(1, 4, 32, requires_grad=True)
    out = nsvq(delta)
    out.vectors.square().sum().backward()
    assert delta.grad.abs().min() > 0
    chosen = set(out.indices.flatten().tolist())
    for code in range(8):
        assert (nsvq.codebook.grad[code].abs().sum() > 0) == (code in chosen)


def test_a_delta_that_is_a_code_has_a_finite_gradient():
    nsvq = make()
    delta = nsvq.codebook.detach()[None, :4].clone().requires_grad_()
    nsvq(delta).vectors.sum().backward()
    assert delta.grad.isfinite().all()
    assert nsvq.codebook.grad.isfinite().all()


@pytest.mark.parametrize(
    ("usage", "perplexity"),
    [([4, 4, 4, 4, 4, 4, 4, 4], 8), ([32, 0, 0, 0, 0, 0, 0, 0], 1), ([9, 9, 0, 0, 0, 0, 0, 0], 2)],
)
def test_perplexity_is_the_exponential_of_the_entropy(usage, perplexity):
    none = torch.zeros(0)
    value = Quantized(none, none, torch.tensor(usage)).perplexity
    assert value.item() == pytest.approx(perplexity)


def test_usage_is_counted_in_training_and_never_in_validation():
    nsvq = make()
    delta = torch.randn(16, 4, 32)
    nsvq.eval()
    nsvq(delta)
    assert nsvq.counts.sum() == 0
    nsvq.train()
    out = nsvq(delta)
    nsvq(delta)
    assert nsvq.counts.tolist() == (2 * torch.bincount(out.indices.flatten(), minlength=8)).tolist()


def test_little_used_codes_move_next_to_used_ones_and_the_counts_restart():
    nsvq = make()
    before = nsvq.codebook.detach().clone()
    nsvq.counts += torch.tensor([500, 300, 0, 9, 12, 100, 79, 0])  # 0.1 * 1000 / 8 = 12.5
    done = nsvq.replace()
    assert (done.used, done.replaced, done.min_count, done.total) == (6, 4, 0, 1000)
    used, little = [0, 1, 5, 6], [2, 3, 4, 7]
    assert torch.equal(nsvq.codebook[used], before[used])
    near = torch.cdist(nsvq.codebook[little], before[used])
    assert near.min(dim=1).values.max() < 0.02 * math.sqrt(32) * 1.8
    assert near.min(dim=1).values.min() > 0  # beside it, not upon it
    assert sorted(near.argmin(1).tolist()) == [0, 1, 2, 3]  # each used code is copied once
    assert nsvq.counts.sum() == 0


def test_one_code_that_takes_all_is_copied_to_all_others():
    nsvq = make()
    nsvq.counts[3] = 10
    assert nsvq.replace().replaced == 7
    assert torch.cdist(nsvq.codebook, nsvq.codebook[3:4]).max() < 0.3


def test_an_evenly_used_codebook_stays_as_it_is():
    nsvq = make()
    before = nsvq.codebook.detach().clone()
    nsvq.counts += 20
    assert nsvq.replace().replaced == 0
    assert torch.equal(nsvq.codebook, before)


def test_the_schedule_of_replacement():
    schedule = LaqConfig().replacement
    due = [step for step in range(20_000) if replacement_due(step, schedule)]
    tens, hundreds = list(range(10, 100, 10)), list(range(100, 1000, 100))
    assert due == tens + hundreds + list(range(1000, 5000, 500))


def test_counts_travel_with_a_checkpoint():
    nsvq, other = make(), make()
    nsvq.counts += torch.arange(8)
    other.load_state_dict(nsvq.state_dict())
    assert other.counts.tolist() == list(range(8))
    assert torch.equal(other.codebook, nsvq.codebook)


RANK = """
import json, sys, torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from headrace.recipes.laq.config import LaqConfig
from headrace.recipes.laq.nsvq import Nsvq
torch.set_num_threads(1)
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(rank)
nsvq = Nsvq(LaqConfig.tiny())
ddp = DistributedDataParallel(nsvq)  # makes the codebooks equal
before = nsvq.codebook.detach().clone()
seen = []
for _ in range(3):  # rank 0 uses codes 0 and 1, rank 1 codes 1 and 2: more than DDP's buffers say
    delta = before[[rank, rank + 1, rank, rank + 1]].unsqueeze(0) + 1e-3
    ddp(delta).vectors.sum().backward()
    seen.append(nsvq.counts.tolist())
done = nsvq.replace()
print(json.dumps({
    "codebook": nsvq.codebook.tolist(), "before": before.tolist(), "counts": seen[-1],
    "used": done.used, "replaced": done.replaced, "total": done.total,
}))
dist.destroy_process_group()
"""


def test_two_ranks_replace_the_same_codes_by_the_same_codes(tmp_path):
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE)
        for rank in (0, 1)
    ]
    first, second = (json.loads(process.communicate(timeout=100)[0]) for process in ranks)
    assert first["before"] == second["before"]
    assert first["counts"] == [6, 6, 0, 0, 0, 0, 0, 0]
    assert second["counts"] == [0, 6, 6, 0, 0, 0, 0, 0]
    assert first["codebook"] == second["codebook"]
    for rank in (first, second):
        assert (rank["used"], rank["replaced"], rank["total"]) == (3, 5, 24)
        assert rank["codebook"][:3] == rank["before"][:3]
        assert rank["codebook"][3:] != rank["before"][3:]
