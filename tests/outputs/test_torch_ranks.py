"""Ranks: from torch.distributed or the environment, disjoint and together the single sequence."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from itertools import islice

import pytest

from headrace.errors import UsageError
from tests.outputs.conftest import mixture_dict

#: Made before the process group, as a script does that leaves the group to its trainer.
RANK = """
import hashlib, itertools, json, sys
import torch.distributed
import headrace as hr
from headrace.outputs.torch import TorchLoader

mixture, rank, meeting = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
mixture = hr.Mixture.from_dict(mixture)
options = {"batch_size": 2, "image_size": 32, "keep_free": 0, "workers": 1}

def samples(batches):
    return [
        (draw, hashlib.sha256(frames.numpy().tobytes()).hexdigest())
        for batch in batches
        for draw, frames in zip(batch["draws"].tolist(), batch["frames"])
    ]

loader = TorchLoader(mixture, **options)
own = TorchLoader(mixture, rank=2, world_size=5, **options)
with loader, own:
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    validation = loader.validation()
    found = {
        "training": samples(itertools.islice(loader, 6)),
        "draws": loader.state_dict()["draws"],
        "length": len(validation),
        "batches": len(list(validation)),
        "validation": samples(validation),
        "explicit": next(iter(own))["draws"].tolist(),
    }
    torch.distributed.destroy_process_group()
with open(sys.argv[4], "w") as file:
    json.dump(found, file)
"""


def samples(batches):
    """Draw number and content of every sample of plain batches."""
    return [
        [int(draw), hashlib.sha256(frames.transpose(3, 0, 1, 2).tobytes()).hexdigest()]
        for batch in batches
        for draw, frames in zip(batch.draws, batch.frames, strict=True)
    ]


def test_two_processes_of_torch_distributed_share_the_sequence(data, plain, tmp_path):
    mixture = json.dumps(mixture_dict(data))
    environment = {
        key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")
    }
    outputs = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    with contextlib.ExitStack() as stack:
        processes = []
        for rank, output in enumerate(outputs):
            meeting = f"file://{tmp_path}/meeting"
            process = subprocess.Popen(
                [sys.executable, "-c", RANK, mixture, str(rank), meeting, str(output)],
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            stack.enter_context(process)
            stack.callback(process.kill)  # one that failed must not leave the other waiting
            processes.append(process)
        for process in processes:
            _, error = process.communicate(timeout=60)
            assert process.returncode == 0, error
    found = [json.loads(output.read_text()) for output in outputs]
    expected = samples(islice(plain, 6))
    assert sorted(found[0]["training"] + found[1]["training"]) == expected
    assert [rank["draws"] for rank in found] == [24, 24]
    first, second = ({draw for draw, _ in rank["training"]} for rank in found)
    assert not first & second
    expected = samples(plain.validation())
    assert sorted(found[0]["validation"] + found[1]["validation"]) == expected
    assert all(rank["length"] == rank["batches"] for rank in found)
    assert all(rank["explicit"] == [4, 5] for rank in found)


@pytest.mark.parametrize("keys", [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")])
def test_without_a_process_group_the_environment_gives_the_rank(loaders, monkeypatch, keys):
    monkeypatch.setenv(keys[0], "1")
    monkeypatch.setenv(keys[1], "3")
    loader = loaders()
    assert next(iter(loader))["draws"].tolist() == [4, 5, 6, 7]
    assert loader.state_dict()["draws"] == 12


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_the_length_of_a_validation_is_right_on_every_rank(loaders, world):
    for rank in range(world):
        validation = loaders(rank=rank, world_size=world, workers=1).validation()
        assert len(validation) == len(list(validation))


def test_a_rank_needs_its_world(loaders):
    with pytest.raises(UsageError, match="Give both"):
        loaders(rank=1)
