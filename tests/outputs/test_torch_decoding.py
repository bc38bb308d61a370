"""Decoding on a device, as far as it can be seen without one: resizing, taking turns, hand-over."""

import gc
import threading
from itertools import count

import numpy as np
import pytest
import torch

from headrace.decoding.resize import resize_into
from headrace.errors import DataError, UsageError
from headrace.loader import Batch
from headrace.outputs.torch.device import Decoded
from headrace.outputs.torch.jpeg import Choice, device_decoder_missing, resize


@pytest.mark.parametrize("filter", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(480, 640), (64, 48), (128, 128), (100, 333)])
def test_tensors_are_resized_as_arrays_are(filter, size):
    pixels = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    here = np.empty((128, 128, 3), np.uint8)
    resize_into(pixels, here, filter)
    there = resize(torch.from_numpy(pixels).permute(2, 0, 1)[None], (128, 128), filter)
    difference = np.abs(there[0].permute(1, 2, 0).numpy().astype(int) - here)
    assert difference.max() <= (1 if filter == "bilinear" else 0)


def test_decoding_on_a_gpu_without_one_is_refused_and_auto_takes_the_cpu(loaders, caplog):
    with pytest.raises(UsageError, match=r"decode is 'gpu', but there is no CUDA device"):
        loaders(decode="gpu")
    with pytest.raises(UsageError, match="decode is 'both'"):
        loaders(decode="both")
    loader = loaders(decode="auto")
    assert "decode: the CPU decodes (there is no CUDA device" in caplog.text
    assert next(iter(loader))["frames"].dtype == torch.uint8
    assert "'area'" in (device_decoder_missing(torch.device("cuda"), "area") or "")


def choose(cpu, gpu, batch=32, ahead=2):
    """What is chosen where a batch takes so many seconds with either."""
    choice, turns = Choice(ahead), []
    while not choice.settled:
        turns.append(choice.who)
        choice.add(batch, cpu if choice.who == "cpu" else gpu)
    return choice, turns


@pytest.mark.parametrize(
    ("cpu", "gpu", "chosen"),
    [(0.2, 0.1, "gpu"), (0.1, 0.2, "cpu"), (0.1, 0.1, "cpu"), (0.1, 0.098, "cpu")],
)
def test_the_one_that_trains_faster_decodes_and_the_cpu_where_that_is_equal(cpu, gpu, chosen):
    choice, turns = choose(cpu, gpu)
    assert choice.settled
    assert choice.who == chosen
    assert {"cpu", "gpu"} == set(turns)
    assert choice.rates == {"cpu": pytest.approx(32 / cpu), "gpu": pytest.approx(32 / gpu)}
    assert not choice.add(32, 1.0)


def test_the_choice_is_told_with_both_rates():
    said = choose(0.2, 0.1)[0].explain()
    assert said == "decode: the GPU decodes from here on (320 samples/s, 160 with the CPU)"


def test_steps_that_warm_up_do_not_decide():
    choice = Choice(1)
    first = True
    while not choice.settled:
        slow = first  # the first turn, of the CPU, compiles the model
        before = choice.who
        choice.add(32, 5.0 if slow else 0.1)
        first = first and choice.who == before
    assert choice.who == "cpu"


class Sent:
    """A copy that is over at once."""

    def __init__(self, batch):
        self.number = int(batch.draws[0])

    def done(self):
        return True

    def wait(self, *, held_up=True):
        assert not held_up

    def take(self):
        return {"draws": self.number}


def batch(number):
    return Batch(frames=np.zeros((1, 2, 8, 8, 3), np.uint8), names=("a",), draws=np.array([number]))


def device_threads():
    return [t for t in threading.enumerate() if t.name.startswith("headrace-device")]


def test_batches_come_in_order_with_what_they_are():
    numbers = iter(range(5))
    decoded = Decoded(lambda: lambda: batch(next(numbers)), Sent)
    for number in range(5):
        assert next(decoded) == {"draws": number}
        assert decoded.about.draws.tolist() == [number]
        assert len(decoded.about) == 1
    with pytest.raises(StopIteration):
        next(decoded)
    decoded.close()
    assert not device_threads()


def test_an_error_belongs_to_the_batch_it_came_with():
    numbers = iter(range(3))

    def take():
        if (number := next(numbers)) == 1:
            raise DataError("damaged")
        return batch(number)

    decoded = Decoded(lambda: take, Sent)
    assert next(decoded) == {"draws": 0}
    with pytest.raises(DataError, match="damaged"):
        next(decoded)
    decoded.close()


def test_a_consumer_that_lets_go_ends_the_thread():
    numbers = count()
    decoded = Decoded(lambda: lambda: batch(next(numbers)), Sent)
    next(decoded)
    del decoded
    gc.collect()
    for thread in device_threads():
        thread.join(2)
    assert not device_threads()


def test_a_source_that_is_gone_ends_the_sequence():
    sources = iter([lambda: batch(0), None])
    decoded = Decoded(lambda: next(sources), Sent)
    assert next(decoded) == {"draws": 0}
    with pytest.raises(StopIteration):
        next(decoded)
    decoded.close()
