"""Memory runs short for real: the loader slows down, says so once, and delivers the same."""

import json
import subprocess
import sys

import pytest

import headrace as hr
from headrace.engine.machine import allowed_memory
from headrace.engine.slots import slot_bytes
from headrace.errors import BudgetError, UsageError
from headrace.loader.loader import feed_of
from headrace.loader.options import KEEP_FREE
from headrace.loader.sizes import SPARE_SLOTS
from tests.memory_group import memory_group

MIB = 1 << 20

#: Trains and validates while another process takes most of what the group has left, and frees it.
PRESSED = """
import json, logging, subprocess, sys
import headrace as hr
from headrace.engine.machine import available_memory

said = []
class Said(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("headrace").addHandler(Said())

HOG = '''
import sys
taken = bytearray(int(sys.argv[1]))
for place in range(0, len(taken), 4096):
    taken[place] = 1
print("taken", flush=True)
sys.stdin.read()
'''
mixture = hr.Mixture.from_dict(json.loads(sys.argv[1]))
batch, left = int(sys.argv[2]), int(sys.argv[3])
draws, depths = [], []

with hr.Loader(mixture, batch_size=batch, image_size=128, keep_free="60MiB") as loader:
    said.clear()  # what was said of the mixture when it was opened

    def steps(until):
        while True:
            draws.append(next(loader).draws.tolist())
            depths.append(loader.statistics().engine.streams[0].slot_limit)
            if until() or len(draws) > 3000:
                return
    steps(lambda: len(draws) == 5)
    if left:
        size = str(available_memory() - left)
        process = subprocess.Popen([sys.executable, "-c", HOG, size],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        steps(lambda: len(said) == 1)
        steps(lambda: depths[-1] == 2)
    validated = sum(len(got) for got in loader.validation(3))
    if left:
        process.communicate()
        steps(lambda: len(said) == 2)
    steps(lambda: depths[-1] > 1)
    print(json.dumps({"said": said, "depths": depths, "validated": validated, "draws": draws}))
"""


def pressed(mixture, limit, *, left=0):
    try:
        with memory_group(limit) as group:
            command = [sys.executable, "-c", PRESSED, json.dumps(mixture.to_dict()), "16"]
            done = subprocess.run(
                group.command(*command, str(left)), capture_output=True, text=True, timeout=120
            )
            kills = group.kills
    except UsageError as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stderr
    assert kills == 0
    return json.loads(done.stdout)


def test_another_process_takes_the_memory_and_gives_it_back(loaders, mixture):
    found = pressed(mixture, 300 * MIB, left=45 * MIB)
    short, again = found["said"]
    assert "keep" in short
    assert "again" in again
    assert min(found["depths"]) == 2
    assert found["depths"][-1] >= found["depths"][0] > 2
    assert found["validated"] > 0
    calm = loaders(mixture, batch_size=16)
    assert found["draws"] == [next(calm).draws.tolist() for _ in found["draws"]]


def test_training_and_validation_fit_into_a_group_hardly_larger_than_python(mixture):
    found = pressed(mixture, 180 * MIB)
    assert found["validated"] > 0


def test_the_floor_is_at_most_an_eighth_of_what_there_is(loaders, mixture):
    loader = loaders(mixture, keep_free=None)
    assert loader.options.keep_free_bytes == min(KEEP_FREE, allowed_memory() // 8)


@pytest.fixture
def small(loaders, mixture):
    """Loaders with a budget of so many batches, of 6 MB each so that nothing else counts."""

    def make(slots=None):
        options = {"batch_size": 16, "image_size": 256, "workers": 0}
        easy = loaders(mixture, **options)
        if slots is None:
            return easy
        sizes = feed_of(easy).sizes
        one = slot_bytes(sizes.specs)
        all_slots = sizes.most_slots + sizes.validation_slots + SPARE_SLOTS
        rest = sizes.budget - all_slots * one  # for reading and decoding
        return loaders(mixture, **options, memory=slots * one + rest)

    return make


def rehearsal(loader):
    """Draws of training with a validation pass after every fourth, and the samples of those."""
    seen = []
    for number in range(12):
        seen.append(next(loader).draws.tolist())
        if number % 4 == 3:
            seen += [batch.frame_idx.tolist() for batch in loader.validation(2)]
    return seen


def test_validation_takes_the_place_of_prefetched_batches_where_the_budget_is_tight(small):
    expected = rehearsal(small())
    for slots in (5, 4, 3):
        assert rehearsal(small(slots)) == expected


def test_a_consumer_that_leaves_no_room_for_validation_is_told_and_can_go_on(small):
    loader = small(3)
    kept = [next(loader), next(loader), next(loader)]
    with pytest.raises(BudgetError, match="budget"):
        next(loader.validation(2))
    kept.clear()
    assert len(next(loader)) == 16


def test_the_default_budget_of_a_small_machine_still_holds_a_large_batch(mixture, monkeypatch):
    monkeypatch.setattr("headrace.loader.sizes.available_memory", lambda: 300 * MIB)
    with hr.Loader(mixture, batch_size=256, image_size=128, workers=1, keep_free=0) as loader:
        held = loader.statistics().engine.budget.limit
        assert 75 * MIB < held <= 150 * MIB
        assert len(next(loader)) == 256


def test_ranks_of_a_node_share_its_cpus_and_memory_and_one_says_so(mixture, monkeypatch, caplog):
    monkeypatch.setattr("headrace.loader.sizes.available_memory", lambda: 400 * MIB)
    options = {"batch_size": 64, "image_size": 128, "keep_free": 0}
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with hr.Loader(mixture, **options) as alone:
        whole = feed_of(alone).sizes
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for rank in (0, 1):
        with hr.Loader(mixture, **options, rank=rank, world_size=2) as loader:
            share = feed_of(loader).sizes
        assert share.threads == max(1, whole.threads // 2)
        assert share.budget == whole.budget // 2
    (told,) = [text for text in caplog.messages if "ranks share" in text]
    assert told.startswith("2 ranks")
