"""How windows are shared out: tasks of a few milliseconds, and enough of them on the way."""

import numpy as np
import pytest

from headrace.engine.slots import ArraySpec
from headrace.loader import sizes as loader_sizes
from headrace.loader.options import RowOptions
from headrace.loader.rows import loader as row_loader
from headrace.loader.rows.loader import RowSizes
from headrace.loader.rows.plan import RowPlan, RowPlanner
from headrace.sampling.items import RowWindows


class InOrder:
    def draw(self, numbers):
        return np.divmod(np.asarray(numbers), 100)


def tasks(batch, *, threads=16, on_the_way=25, pace=0.0, batches=2):
    windows = RowWindows([6400], size=64, stride=64, across_files=True)
    planner = RowPlanner(windows, InOrder(), batch, threads, on_the_way, lambda: pace)
    planned = planner.batches([np.arange(batch) + number * batch for number in range(batches)])
    for number, (draws, made) in enumerate(planned):
        plan = RowPlan(np.concatenate([task.matrix for task in made]))
        assert plan.row.tolist() == list(range(batch))
        assert plan.draw.tolist() == draws.tolist()
        assert draws.tolist() == list(range(number * batch, batch * -~number))
    return [len(task) for task in planned[0][1]]


@pytest.mark.parametrize(
    ("batch", "options", "expected"),
    [
        (256, {}, [16] * 16),  # nothing is known yet: all threads work on the first batch
        (256, {"pace": 15e-6}, [256]),
        (1024, {"pace": 15e-6}, [256] * 4),
        (256, {"pace": 60e-6}, [128, 128]),
        (20, {"pace": 10e-3}, [7, 7, 6]),  # a slow transform must not hold up the end
        (256, {"pace": 15e-6, "on_the_way": 5}, [52, 51, 51, 51, 51]),  # memory for few batches
        (4, {}, [4]),
    ],
)
def test_tasks_take_milliseconds_and_every_thread_has_one(batch, options, expected):
    assert tasks(batch, **options) == expected


def sizes(monkeypatch, *, window=24 << 10, batch=256, cpus=16, cache=0, **options):
    monkeypatch.setattr(loader_sizes, "allowed_cpus", lambda: cpus)
    monkeypatch.setattr(loader_sizes, "sharing_is_possible", lambda: True)
    monkeypatch.setattr(row_loader, "available_memory", lambda: 64 << 30)
    given = RowOptions(batch_size=batch, keep_free=0, **options)
    return RowSizes.of(given, {"x": ArraySpec((batch, window), "uint8")}, cache)


def test_as_many_batches_are_on_the_way_as_keep_all_processes_busy(monkeypatch):
    assert (sizes(monkeypatch).slots, sizes(monkeypatch).processes) == (25, 16)
    assert sizes(monkeypatch, batch=64).slots == 25
    assert sizes(monkeypatch, batch=1024).slots == 7
    assert sizes(monkeypatch, cpus=2).slots == sizes(monkeypatch, workers=0).slots == 6
    assert sizes(monkeypatch, window=1 << 20).slots == 6  # 256 MB a batch
    found = sizes(monkeypatch, memory="200MB")
    assert found.slots < 25
    assert found.slots * 6 * 2**20 + found.processes * (64 << 20) <= 200e6
