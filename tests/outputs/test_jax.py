"""Batches on a JAX device."""

import runpy
import sys

import numpy as np
import pytest

from headrace.errors import UsageError

jax = pytest.importorskip("jax")

import headrace.outputs.jax as output  # noqa: E402


def counted(seen, count=5):
    for number in range(count):
        seen.append(number)
        yield {"inputs": np.full((2, 3), number, np.int32), "targets": np.zeros(2, np.int32)}


@pytest.mark.parametrize("ahead", [0, 1, 3, 9])
def test_batches_come_in_order_and_so_many_are_under_way(ahead):
    seen = []
    device = output.device_batches(counted(seen), fields=["inputs"], ahead=ahead)
    first = next(device)
    assert len(seen) == min(5, ahead + 1)
    numbers = [int(batch["inputs"][0, 0]) for batch in (first, *device)]
    assert numbers == [0, 1, 2, 3, 4]
    assert first.keys() == {"inputs"}
    assert isinstance(first["inputs"], jax.Array)


def test_a_place_on_devices_may_be_given_and_nonsense_is_refused():
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    (batch, *_) = output.device_batches(counted([]), sharding=where)
    assert batch["targets"].sharding == where
    with pytest.raises(UsageError, match="ahead is -1"):
        next(output.device_batches([], ahead=-1))


def test_without_jax_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(UsageError, match="jax") as caught:
        runpy.run_path(output.__file__)
    assert "pip install 'headrace[jax]'" in caught.value.remedy
