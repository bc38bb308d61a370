"""A closed loader gives everything back at once, without the garbage collector."""

import gc
import os
import threading
import time
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

import headrace as hr
from headrace.engine import workers as workers_module
from headrace.engine.machine import descendants
from headrace.engine.slots import Slot
from headrace.errors import ImageError
from headrace.loader import LoaderOptions
from headrace.loader.feed import MixtureFeed
from headrace.loader.loader import loader_over
from headrace.loader.work import SampleFiller
from headrace.reading.local import LocalFiles
from tests.loader.conftest import make_mixture, spoil_frame
from tests.row_files import transform, write_set

OPTIONS = {"batch_size": 4, "image_size": 128, "keep_free": 0}


@pytest.fixture(autouse=True)
def _without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held():
    """What this process has: files, threads, processes, shared memory (kB)."""
    status = Path("/proc/self/status").read_text()
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "processes": len(descendants(os.getpid())),
        "shared": int(status.split("RssShmem:")[1].split()[0]),
    }


def anonymous():
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def trained(mixture, **options):
    with hr.Loader(mixture, **OPTIONS, **options) as loader:
        batches = [next(loader), next(loader)]
        return len(batches)


def validated(mixture):
    with hr.Loader(mixture, **OPTIONS, workers=2) as loader:
        next(loader)
        left = loader.validation()
        whole = list(loader.validation(2))
        return next(left), len(whole), next(loader)


def abandoned(mixture):
    loader = hr.Loader(mixture, **OPTIONS, workers=2)
    return next(loader), next(loader.validation())


def resumed(mixture):
    with hr.Loader(mixture, **OPTIONS, workers=2) as loader:
        next(loader)
        loader.load_state_dict(loader.state_dict())
        next(loader)


def tensors(mixture, **options):
    with hr.TorchLoader(mixture, **OPTIONS, workers=2, **options) as loader:
        seen = list(islice(loader, 2))
        return len(seen), [len(batch) for batch in loader.validation(2)]


def windows(rows):
    with hr.RowLoader(rows, transform=transform, batch_size=5, workers=2, keep_free=0) as loader:
        return next(loader), next(loader)


def grain(rows):
    from headrace.outputs.grain import grain_pipeline

    iterator = iter(grain_pipeline(rows, batch_size=5, transform=transform, seed=1))
    first = next(iterator)
    iterator.close()
    deadline = time.monotonic() + 60
    while any("grain" in thread.name for thread in threading.enumerate()):  # they end by themselves
        assert time.monotonic() < deadline
    return first


MIXTURES = {
    "processes": partial(trained, workers=2),
    "threads": partial(trained, workers=0),
    "validation": validated,
    "abandoned": abandoned,
    "resumed": resumed,
    "torch": tensors,
    "cuda": partial(tensors, device="cuda"),
}
ROWS = {"grain": grain, "rows": windows}


@pytest.mark.parametrize("kind", [*MIXTURES, *ROWS])
def test_what_is_opened_and_closed_many_times_holds_nothing(kind, data, tmp_path):
    """A hundred openings of all kinds together."""
    if kind in ("torch", "grain"):
        pytest.importorskip(kind)
    if kind == "cuda" and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("there is no CUDA device")
    if kind in MIXTURES:
        use = partial(MIXTURES[kind], make_mixture(data, ["kuka"]))
    else:
        use = partial(ROWS[kind], hr.RowSet(write_set(tmp_path), columns=["number"], window=8))
    for _ in range(3):
        use()
    before, memory = held(), anonymous()
    for _ in range(13):
        use()
    assert held() == before
    assert anonymous() - memory < 10, "MB of memory that were not given back"


def test_worker_processes_are_given_back(data, monkeypatch):
    monkeypatch.setattr(workers_module, "START_AFTER", 0.0)

    def use():
        with hr.Loader(make_mixture(data, ["bridge", "kuka"]), **OPTIONS, workers=2) as loader:
            deadline = time.monotonic() + 120
            while len(loader.statistics().engine.processes) < 2:
                assert time.monotonic() < deadline
                next(loader)
            loader.close()
            return held()  # also while the loader itself is still there

    use()
    before = held()
    within = [use() for _ in range(2)]
    assert held() == before
    assert all(one["processes"] == before["processes"] for one in within)
    assert all(one["shared"] == before["shared"] for one in within)


def test_a_batch_that_is_held_keeps_its_own_memory_alone(data):
    before = held()
    with hr.Loader(make_mixture(data, ["bridge", "kuka"]), **OPTIONS, workers=2) as loader:
        batches = [next(loader) for _ in range(3)]
        sums = [int(batch.frames.sum()) for batch in batches]
        one = batches[0].frames.nbytes // 1024
    del loader
    assert [int(batch.frames.sum()) for batch in batches] == sums
    assert held()["shared"] - before["shared"] <= 3 * one + 100
    del batches[1:]
    assert held()["shared"] - before["shared"] <= one + 50
    assert int(batches[0].frames.sum()) == sums[0]
    del batches
    after = held()
    files = LocalFiles().max_open  # data files stay open for the next loader
    assert after["shared"] == before["shared"]
    assert after["files"] - before["files"] < min(files, 8)


def test_an_error_that_is_kept_keeps_no_slots(own):
    mixture = make_mixture(own, ["bridge"])
    spoil_frame(own)
    files, kept = LocalFiles(), []

    def use(workers):
        feed = MixtureFeed(mixture, LoaderOptions(**OPTIONS, workers=workers), files=files)
        with loader_over(feed) as loader:
            for _ in range(2):  # the second time without a batch before it
                with pytest.raises(ImageError) as caught:
                    for _ in range(80):
                        next(loader)
                kept.append(caught.value)

    before = held()
    for workers in (2, 0, 2, 0):
        use(workers)
        assert held()["shared"] == before["shared"]
        assert held()["threads"] == before["threads"]
        assert not [one for one in gc.get_objects() if type(one) in (Slot, SampleFiller)]
    assert all("bridge" in str(error) for error in kept)
