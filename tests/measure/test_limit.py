"""What machine and data allow: measured on the loader's own draws."""

import time

import pytest

import headrace as hr
from headrace.errors import ImageError
from headrace.loader.loader import feed_of
from headrace.measure import limit as limit_module
from headrace.measure.limit import decode_limit, source_costs, storage_limit, tight_loop
from headrace.testing import synthesize


@pytest.fixture
def loader(tmp_path):
    synthesize(tmp_path, only=["bridge", "utaustin_mutex"], episodes=2, _max_steps=8)
    mixture = hr.Mixture.from_dict(
        {
            "root": str(tmp_path),
            "defaults": {"offset": 2, "weight": 1.0},
            "sources": [{"name": "bridge"}, {"name": "utaustin_mutex"}],
        }
    )
    with hr.Loader(mixture, batch_size=4, image_size=64, keep_free=0) as loader:
        yield loader


def test_the_limit_is_measured_in_processes_and_does_not_move_the_loader(loader):
    limit = decode_limit(loader, seconds=0.5, processes=2, samples=16)
    assert limit.processes == 2
    assert limit.samples > 0
    assert limit.samples_per_s == limit.samples / 0.5
    assert next(loader).draws.tolist() == [0, 1, 2, 3]


def test_processes_that_are_late_are_not_counted_until_all_run(loader, monkeypatch):
    monkeypatch.setattr(limit_module, "_START_SECONDS", 0.001)
    calls, run = [], limit_module.ProcessPool.run
    monkeypatch.setattr(
        limit_module.ProcessPool,
        "run",
        lambda pool, jobs, progress: (calls.append(jobs[0]["start"]), run(pool, jobs, progress))[1],
    )
    assert decode_limit(loader, seconds=0.2, processes=2, samples=16).samples > 0
    assert len(calls) > 1, "a process cannot start in a millisecond"


def test_the_storage_limit_reads_each_draw_once_and_decodes_nothing(loader):
    limit = storage_limit(loader, seconds=5, processes=2, samples=64)
    assert limit.samples_per_s > decode_limit(loader, seconds=0.3, samples=16).samples_per_s
    mean = sum(sum(sample.lengths) for sample in feed_of(loader).next_samples(64)) / 64
    assert limit.bytes_per_s / limit.samples_per_s == pytest.approx(mean, rel=0.3)


def test_every_source_has_its_costs_and_nothing_is_drawn(loader):
    costs = {cost.name: cost for cost in source_costs(loader, seconds=0.03)}
    assert list(costs) == ["bridge", "utaustin_mutex"]
    assert sum(cost.share for cost in costs.values()) == pytest.approx(1, abs=1e-3)
    assert (costs["bridge"].encoding, costs["bridge"].height) == ("jpeg", 480)
    assert costs["utaustin_mutex"].encoding == "png"
    assert all(cost.decode_s > 0 and cost.bytes > 1000 for cost in costs.values())
    assert loader.state_dict()["draws"] == 0


def test_the_next_samples_are_those_that_the_loader_draws_next(loader):
    next(loader)
    ahead = [sample.start for sample in feed_of(loader).next_samples(8)]
    starts = [int(t) for _ in range(2) for t in next(loader).frame_idx]
    assert ahead == starts


def test_a_damaged_frame_shows_in_the_limit_too(loader, tmp_path):
    (sample, *_) = feed_of(loader).next_samples(1)
    path = tmp_path / "zeros"
    path.write_bytes(bytes(10_000))
    job = {
        "draws": [{"file": str(path), "frames": [[0, 5000]], "channels": 3}],
        "start": 0.0,
        "stop": time.monotonic() + 0.1,
        "size": [64, 64],
        "filter": "bilinear",
    }
    with pytest.raises(ImageError):
        tight_loop(job, None)
    assert sample.lengths
