"""torch batches: the loader's own bytes and memory, epochs, states, errors."""

import copy
import gc
import json
import os
import pickle
import subprocess
import sys
import time
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import headrace as hr
from headrace.errors import UsageError
from headrace.outputs.torch import TorchLoader

ARRAYS = ("draws", "dataset", "episode_id", "frame_idx", "offset", "action", "state")


def assert_equal(tensors, batch):
    """A dict of tensors in BTHWC has all that the loader's batch has, to the byte."""
    assert tensors["frames"].numpy().tobytes() == batch.frames.tobytes()
    for name in (*ARRAYS, "action_is_pad"):
        array = getattr(batch, name)
        assert (name in tensors) == (array is not None)
        if array is not None:
            assert tensors[name].numpy().dtype == array.dtype
            np.testing.assert_array_equal(tensors[name].numpy(), array, strict=True)
    for name in ("language", "robot"):
        assert tensors.get(name) == getattr(batch, name)
    assert tensors["names"] == batch.names


def draws(batches, count):
    """The draw numbers of the next batches."""
    return [batch["draws"].tolist() for batch in islice(batches, count)]


@pytest.mark.parametrize("options", [{}, {"metadata": "none"}, {"metadata": "dataset"}])
def test_batches_are_those_of_the_loader(mixture, loaders, options):
    loader = loaders(layout="BTHWC", **options)
    with hr.Loader(mixture, batch_size=4, image_size=32, keep_free=0, **options) as plain:
        for tensors, batch in zip(islice(loader, 8), plain, strict=False):
            assert_equal(tensors, batch)


def test_chunks_of_actions_come_with_their_mask(mixture, loaders):
    loader = loaders(layout="BTHWC", action_chunk=3)
    options = {"batch_size": 4, "image_size": 32, "keep_free": 0, "action_chunk": 3}
    with hr.Loader(mixture, **options) as plain:
        for tensors, batch in zip(islice(loader, 4), plain, strict=False):
            assert tensors["action_is_pad"].dtype == torch.bool
            assert tensors["action"].shape[:2] == (4, 3)
            assert_equal(tensors, batch)


def test_bcthw_is_a_view_in_the_strides_of_channels_last(plain, loaders):
    (tensors,) = islice(loaders(), 1)
    frames = tensors["frames"]
    assert frames.shape == (4, 3, 2, 32, 32)
    assert frames.is_contiguous(memory_format=torch.channels_last_3d)
    assert frames.permute(0, 2, 3, 4, 1).is_contiguous()  # as it lies in memory: BTHWC
    np.testing.assert_array_equal(
        frames.numpy(), next(plain).frames.transpose(0, 4, 1, 2, 3), strict=True
    )


@pytest.mark.parametrize("layout", ["BCTHW", "BTHWC"])
def test_tensors_lie_in_the_slot_s_memory(loaders, layout):
    slots = []

    def lock(memory):
        slots.append(memory)
        return lambda: None

    loader = loaders(layout=layout)
    loader._feed._lock = lock  # before the first slot is made
    for tensors in islice(loader, 12):
        within = None
        for name in ("frames", *ARRAYS[1:]):
            place = tensors[name].data_ptr()
            inside = [s for s in slots if 0 <= place - s.ctypes.data < s.nbytes]
            assert len(inside) == 1, name
            assert within is None or within is inside[0]
            within = inside[0]


@pytest.mark.parametrize("kept", ["frames", "state"])
def test_a_slot_returns_when_the_last_of_its_tensors_is_gone(loaders, kept):
    loader = loaders(workers=1)
    batches = iter(loader)
    tensors = next(batches)
    pool = loader._feed._stream.pool
    returned, ended = [], pool._ended
    pool._ended = lambda lease: (returned.append(lease), ended(lease))
    tensors = next(batches)
    tensor = tensors[kept]
    view = tensor[1:]
    expected = view.clone()
    del tensors, tensor
    gc.collect()
    assert returned == []  # a view of one tensor keeps it
    for _ in range(3 * pool.limit):  # others come and go
        next(batches)
    assert torch.equal(view, expected)
    before = len(returned)
    assert before == 3 * pool.limit
    del view
    assert len(returned) == before + 1


def test_memory_is_reused_and_nothing_is_held_by_the_iterator(loaders):
    loader = loaders()
    batches = iter(loader)
    for _ in range(50):
        next(batches)
    stream = loader.statistics().engine.streams[0]
    assert stream.delivered == 50
    assert stream.slots <= stream.slot_limit


def test_an_epoch_ends_after_its_steps_and_the_next_continues(loaders):
    loader = loaders(steps_per_epoch=3)
    assert len(loader) == 3
    first, second = draws(loader, 99), draws(loader, 99)
    assert [len(first), len(second)] == [3, 3]
    assert np.ravel(first + second).tolist() == list(range(24))


def test_iterating_again_after_a_break_begins_a_whole_epoch(loaders):
    loader = loaders(steps_per_epoch=3)
    iter(loader)  # trainers call it to see whether they could
    assert draws(loader, 1) == [[0, 1, 2, 3]]
    assert [rows[0] for rows in draws(loader, 99)] == [4, 8, 12]


def test_without_steps_per_epoch_there_is_no_length(loaders):
    loader = loaders()
    with pytest.raises(TypeError, match="steps_per_epoch"):
        len(loader)
    assert bool(loader)
    assert len(draws(loader, 40)) == 40


@pytest.mark.parametrize("before", [0, 1, 3, 4, 6, 7])
def test_a_resumed_run_equals_the_uninterrupted_one(plain, loaders, before):
    loader = loaders(steps_per_epoch=3, layout="BTHWC")
    batches = (batch for _ in range(9) for batch in loader)
    assert len(draws(batches, before)) == before
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = loaders(steps_per_epoch=3, layout="BTHWC")
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    epochs = [list(resumed), list(resumed)]
    rest = 3 - before % 3
    assert [len(epoch) for epoch in epochs] == [rest, 3]
    expected = list(islice(plain, before + rest + 3))[before:]
    for tensors, batch in zip(epochs[0] + epochs[1], expected, strict=True):
        assert_equal(tensors, batch)


def test_a_state_can_be_loaded_into_a_running_loader_and_by_the_plain_one(plain, loaders):
    loader = loaders()
    draws(loader, 3)
    state = loader.state_dict()
    following = draws(loader, 3)
    loader.load_state_dict(state)
    assert draws(loader, 3) == following
    plain.load_state_dict(state)
    assert next(plain).draws.tolist() == following[0]
    loader.load_state_dict(plain.state_dict())
    assert draws(loader, 2) == following[1:]


def test_a_state_of_another_mixture_says_what_differs(loaders):
    state = loaders(seed=1).state_dict()
    with pytest.raises(UsageError, match="seed was 1, is 0"):
        loaders().load_state_dict(state)


def test_validation_is_one_pass_each_time(plain, loaders):
    loader = loaders(layout="BTHWC")
    training = draws(loader, 2)
    validation = loader.validation()
    assert validation.batch_size == 4
    expected = list(plain.validation())
    for _ in range(2):
        found = list(validation)
        assert len(found) == len(validation) == len(expected)
        for tensors, batch in zip(found, expected, strict=True):
            assert_equal(tensors, batch)
    assert len(expected[-1]) < 4  # the last batch is shorter
    limited = loader.validation(2)
    assert len(limited) == len(list(limited)) == 2
    assert len(loader.validation(10**6)) == len(expected)
    assert training + draws(loader, 1) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_an_abandoned_validation_gives_its_slots_back(loaders):
    loader = loaders()
    draws(loader, 1)
    for _ in range(10):
        for _tensors in loader.validation():
            break
    assert len(loader.statistics().engine.streams) == 1


def test_the_length_of_a_validation_is_known_after_the_loader_is_closed(loaders):
    loader = loaders()
    validation = loader.validation()
    length = len(validation)
    loader.close()
    assert len(validation) == length > 0


def test_a_closed_loader_says_so(loaders):
    loader, fresh = loaders(), loaders()
    batches, validation = iter(loader), iter(loader.validation())
    next(batches), next(validation)
    loader.close()
    fresh.close()
    for use in (batches, iter(loader), validation, iter(loader.validation()), iter(fresh)):
        with pytest.raises(UsageError, match="closed"):
            list(use)


def test_a_loader_that_is_let_go_ends_its_threads(mixture):
    loader = TorchLoader(mixture, batch_size=4, image_size=32, keep_free=0)
    batches = iter(loader)
    tensors = next(batches)
    expected = tensors["frames"].clone()
    threads = list(loader._feed._engine._threads)
    assert all(thread.is_alive() for thread in threads)
    del loader, batches
    assert not any(thread.is_alive() for thread in threads)
    assert torch.equal(tensors["frames"], expected)  # the consumer's batch outlives it


class Wrapped(IterableDataset):
    """What someone writes who must hand a DataLoader to a trainer."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


@pytest.mark.parametrize("started", [False, True])
def test_workers_of_a_dataloader_get_an_error_that_names_the_remedy(loaders, started):
    loader = loaders()
    if started:
        draws(loader, 1)
    wrapped = DataLoader(
        Wrapped(loader), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    batches = iter(wrapped)
    with pytest.raises(UsageError, match="num_workers=0"):
        next(batches)
    batches._shutdown_workers()  # left to the garbage collector it takes torch five seconds
    assert len(draws(loader, 2)) == 2  # and the loader continues here


class Making(IterableDataset):
    """What someone writes who makes the loader where it is used."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        with self.make() as loader:
            yield from (torch.from_numpy(batch.draws) for batch in islice(loader, 2))


@pytest.mark.parametrize("kind", ["Loader", "TorchLoader", "RowLoader"])
def test_a_loader_made_in_the_workers_of_a_dataloader_is_refused(mixture, tmp_path, kind):
    where = tmp_path if kind == "RowLoader" else mixture
    wrapped = DataLoader(
        Making(lambda: getattr(hr, kind)(where)),
        batch_size=None,
        num_workers=2,
        multiprocessing_context="fork",
    )
    batches = iter(wrapped)
    with pytest.raises(UsageError, match="worker 0 of 2.*num_workers=0"):
        next(batches)
    batches._shutdown_workers()


def test_a_dataloader_without_workers_passes_batches_on(loaders):
    loader = loaders(steps_per_epoch=2)
    wrapped = DataLoader(loader, batch_size=None, num_workers=0)
    assert len(wrapped) == 2
    assert draws(wrapped, 99) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    validation = DataLoader(loader.validation(), batch_size=None, num_workers=0)
    assert draws(validation, 99) == draws(loader.validation(), 99)
    (first,) = islice(DataLoader(loaders(layout="BTHWC"), batch_size=None), 1)
    assert (first["frames"].shape, first["frames"].dtype) == ((4, 2, 32, 32, 3), torch.uint8)
    assert len(first["language"]) == 4


def test_a_forked_child_gets_an_error_and_does_not_hang(loaders):
    loader = loaders()
    batches = iter(loader)
    next(batches)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except UsageError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert "after the fork" in pipe.read()
    os.waitpid(child, 0)


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_and_copying_are_refused(loaders, how):
    with pytest.raises(UsageError, match="cannot be pickled.*in the process that uses it"):
        how(loaders())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "BHWC"}, "layout is 'BHWC'. Give BCTHW or BTHWC"),
        ({"steps_per_epoch": 0}, "steps_per_epoch is 0"),
        ({"device": "meta"}, "device is 'meta'"),
        ({"pin": True}, "Give device='cuda'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": "8"}, "batch_size is '8'"),
        ({"image_size": (32, 32, 3)}, "image_size"),
        ({"steps_per_epoch": "5"}, "steps_per_epoch is '5'"),
        ({"layout": None}, "layout is None"),
    ],
)
def test_options_that_cannot_be_are_refused(loaders, options, message):
    with pytest.raises(UsageError, match=message):
        loaders(**options)


def test_cuda_where_there_is_none_is_refused_at_once(loaders, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", 0, torch.device("cuda", 1)):
        with pytest.raises(UsageError, match="finds no CUDA device. Leave device out"):
            loaders(device=device)
    assert next(iter(loaders(device="cpu")))["frames"].device.type == "cpu"


def test_the_options_of_the_loader_are_taken_as_an_object_or_by_name(mixture):
    options = hr.LoaderOptions(batch_size=3, image_size=16, keep_free=0, workers=0)
    with TorchLoader(mixture, options, batch_size=5) as loader:
        assert next(iter(loader))["frames"].shape == (5, 3, 2, 16, 16)
        assert loader.options.image_size == 16


def test_a_missing_torch_names_the_feature_and_the_extra():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import headrace as hr, headrace.outputs\n"
        "try:\n    from headrace.outputs.torch import TorchLoader\n"
        "except hr.HeadraceError as error:\n    print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "headrace.outputs.torch" in out.stdout
    assert "pip install 'headrace[train]'" in out.stdout


def test_a_loader_says_how_long_training_has_waited(loaders):
    loader = loaders()
    assert loader.waited_s == 0.0
    started = time.perf_counter()
    draws(loader, 1)
    first = loader.waited_s
    assert 0 < first <= time.perf_counter() - started
    list(loader.validation())
    assert loader.waited_s == first  # validation is not training
    draws(loader, 1)
    assert loader.waited_s > first
