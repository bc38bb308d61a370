"""Every verdict provoked for real: a loop that has the fault, and the doctor that names it."""

import os
import time
from itertools import cycle, islice

import numpy as np
import pytest

import headrace as hr
from headrace.engine.slots import slot_bytes
from headrace.engine.workers import PROCESS_BYTES
from headrace.loader.loader import feed_of
from headrace.loader.sizes import SPARE_SLOTS
from headrace.reading.local import LocalFiles

pytestmark = pytest.mark.usefixtures("quick_limits")


class SlowFiles(LocalFiles):
    """A disk that takes its time: every read waits."""

    def __init__(self, seconds):
        super().__init__()
        self._seconds = seconds

    def read_into(self, *args):
        time.sleep(self._seconds)
        super().read_into(*args)

    def read(self, where):
        time.sleep(self._seconds)
        return super().read(where)


def watch(loader, step, batches, **options):
    """A loop as anybody writes it, watched; the doctor."""
    settings = {"warmup": 3, "warmup_seconds": 0.0, "quiet": True, **options}
    with hr.Doctor(loader, **settings) as doctor:
        for batch in islice(loader, batches):
            step(batch)
    return doctor


def tried(provoke, kind):
    """A doctor whose verdict is that; others may have had the cores for a while, so try again."""
    for _ in range(3):
        doctor = provoke()
        if doctor.verdict().kind == kind:
            break
    else:
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
        if doctor.verdict().kind == "held up" or load > cores + 1:
            pytest.skip(f"other programs have the cores (load {load:.1f}): {told(doctor)}")
    assert doctor.verdict().kind == kind, told(doctor)
    assert doctor.verdict().healthy == (kind == "compute")
    return doctor


def told(doctor):
    """For the message of a failing assertion."""
    verdict = doctor.verdict()
    return "\n".join(
        [verdict.kind, verdict.headline, *verdict.evidence, *map(str, verdict.changes)]
    )


def test_a_step_that_is_slower_than_its_data_is_compute_bound_and_healthy(loaders):
    loader = loaders()
    tried(lambda: watch(loader, lambda _: time.sleep(0.05), 20, limits=False), "compute")


def test_a_step_that_is_faster_than_decoding_is_decode_bound(loaders):
    loader = loaders(workers=1)
    doctor = tried(lambda: watch(loader, lambda _: None, 30, warmup_seconds=0.5), "decode")
    verdict = doctor.verdict()
    assert "ucsd_kitchen" in verdict.headline
    assert any(change.gain and change.gain > 1.05 for change in verdict.changes)
    assert {source.name for source in doctor.evidence().sources} == {
        "bridge",
        "ucsd_kitchen",
        "kuka",
    }


def test_a_slow_disk_is_storage_bound(loaders):
    loader = loaders(files=SlowFiles(0.02), workers=1, batch_size=4)
    doctor = tried(lambda: watch(loader, lambda _: None, 9), "storage")
    assert doctor.verdict().changes[0].gain > 2


def test_a_budget_without_room_to_work_ahead_is_memory_bound_prefetch(loaders, mixture):
    """Steps of very different length: with enough batches ahead none of them would wait."""
    with hr.Loader(mixture, batch_size=8, image_size=64, keep_free=0, workers=2) as wide:
        full = feed_of(wide).sizes
    # No processes, and two slots of all that there may be.
    all_slots = full.most_slots + full.validation_slots + SPARE_SLOTS
    small = full.budget - 2 * PROCESS_BYTES - (all_slots - 2) * slot_bytes(full.specs)
    pauses = cycle([0.0, 0.0, 0.0, 0.4])
    loader = loaders(memory=small)
    assert feed_of(loader).sizes.slots == 2
    doctor = tried(lambda: watch(loader, lambda _: time.sleep(next(pauses)), 15), "memory")
    verdict = doctor.verdict()
    assert "2 batches instead of 6" in verdict.headline
    assert "budget" in verdict.changes[0].what


def test_a_slow_copy_to_the_device_is_copy_bound(loaders):
    far = np.empty((8, 2, 64, 64, 3), np.uint8)
    loader = loaders()

    def copy(batch):
        for row in range(8):  # a bus that moves a sample in 10 ms
            far[row] = batch.frames[row]
            time.sleep(0.01)

    def watched():
        with hr.Doctor(loader, warmup=3, warmup_seconds=0, quiet=True) as doctor:
            for batch in islice(loader, 12):
                started = time.perf_counter()
                copy(batch)
                doctor.copied(time.perf_counter() - started)
        return doctor

    tried(watched, "copy")


def test_a_step_that_keeps_python_for_itself_is_starved_by_the_python_loop(loaders):
    """The loader's threads need Python's lock for every frame; a sum does not let go of it."""
    loader = loaders(workers=0, batch_size=6)
    doctor = tried(lambda: watch(loader, lambda _: sum(range(3_000_000)), 16), "python")
    assert "processes" in doctor.verdict().changes[0].what
