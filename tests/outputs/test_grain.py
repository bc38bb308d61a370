"""Pipelines on the real Grain: the batches of the plain path, by threads or processes, resumed."""

import itertools
import json
import os
import pickle
import shutil

import numpy as np
import pytest

import headrace as hr
from headrace.errors import UsageError
from headrace.testing import synthesize
from tests.row_files import assert_same, transform, transform_many, write_set

grain = pytest.importorskip("grain")

from headrace.outputs.grain import (  # noqa: E402
    SampleSource,
    WindowSource,
    grain_pipeline,
    map_dataset,
)

# What Grain warns of is its own.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """44 windows of 8 rows. Do not change it."""
    return write_set(tmp_path_factory.mktemp("grain") / "data")


@pytest.fixture
def rows(data):
    return hr.RowSet(data, columns=["number"], window=8)


@pytest.fixture
def pipeline(rows):
    def make(**options):
        settings = {"batch_size": 5, "transform": transform, "seed": 3}
        return grain_pipeline(rows, **{**settings, "num_threads": 2, **options})

    return make


@pytest.fixture
def plain(rows):
    """Batches of the plain path."""

    def take(count, **options):
        settings = {"batch_size": 5, "transform": transform, "seed": 3}
        settings |= {"workers": 0, **options}
        with hr.RowLoader(rows, **settings) as loader:
            return [{n: a.copy() for n, a in next(loader).items()} for _ in range(count)]

    return take


def take(iterator, count):
    return [{n: np.array(a) for n, a in b.items()} for b in itertools.islice(iterator, count)]


# -- where Grain has what ----------------------------------------------------------------------


def test_grain_has_worker_processes_on_the_iteration_and_not_on_what_batch_gives():
    """The mistake that pipelines break on: see docs/guides/grain.md."""
    batched = grain.MapDataset.range(8).batch(2, drop_remainder=True)
    assert not hasattr(batched, "mp_prefetch")
    with pytest.raises(AttributeError, match="mp_prefetch"):
        batched.mp_prefetch(grain.MultiprocessingOptions(num_workers=1))
    assert hasattr(batched.to_iter_dataset(), "mp_prefetch")


# -- windows of rows ---------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", ["exact", "local", "none"])
def test_threads_of_grain_give_the_batches_of_the_plain_path(pipeline, plain, shuffle):
    expected = plain(20, shuffle=shuffle)
    assert_same(take(iter(pipeline(shuffle=shuffle)), 20), expected)
    many = pipeline(shuffle=shuffle, transform=transform_many, num_threads=1)
    assert_same(take(iter(many), 20), expected)


def test_worker_processes_of_grain_give_them_too_and_resume_from_a_checkpoint(pipeline, plain):
    expected = plain(12)
    batches = iter(pipeline(num_workers=2))
    assert_same(take(batches, 5), expected[:5])
    state = json.loads(json.dumps(batches.get_state()))  # as a checkpoint keeps it
    batches.close()
    again = iter(pipeline(num_threads=3))  # other threads and workers
    again.set_state(state)
    assert_same(take(again, 4), expected[5:9])
    again.set_state(state)  # and back
    assert_same(take(again, 7), expected[5:12])


def test_grains_own_state_resumes_the_plain_grain_pipeline(pipeline, plain):
    expected = plain(12)
    batches = iter(pipeline(num_workers=2).plain())
    assert_same(take(batches, 5), expected[:5])
    state = batches.get_state()
    next(batches)
    batches.set_state(state)  # the same workers: to start others takes seconds
    assert_same(take(batches, 7), expected[5:])
    batches.close()


def test_a_state_resumes_with_another_number_of_hosts_and_without_grain(pipeline, plain, rows):
    whole = np.concatenate([batch["what"] for batch in plain(30, batch_size=6)])
    hosts = [iter(pipeline(batch_size=3, rank=rank, world_size=2)) for rank in range(2)]
    found = [next(host)["what"] for _ in range(7) for host in hosts]
    state = hosts[0].get_state()
    assert state == hosts[1].get_state()
    four = [iter(pipeline(batch_size=2, rank=rank, world_size=4)) for rank in range(4)]
    for host in four:
        host.set_state(state)
    found += [next(host)["what"] for _ in range(3) for host in four]
    with hr.RowLoader(rows, batch_size=10, transform=transform, seed=3, workers=0) as loader:
        loader.load_state_dict(four[3].get_state())
        found += [next(loader)["what"].copy() for _ in range(3)]
    found = np.concatenate(found)
    np.testing.assert_array_equal(found, whole[: len(found)])


def test_a_number_of_epochs_ends_and_drops_the_short_batch(pipeline, plain):
    batches = take(iter(pipeline(epochs=2)), 100)
    assert_same(batches, plain(88 // 5))
    two = [take(iter(pipeline(epochs=2, rank=rank, world_size=2)), 100) for rank in range(2)]
    assert [len(one) for one in two] == [8, 8]


def test_an_evaluation_has_every_window_once_in_order_on_any_number_of_hosts(pipeline, rows):
    whole = np.concatenate([rows[window]["number"][:1] for window in range(len(rows))])
    once = {"epochs": 1, "shuffle": "none", "remainder": "pad", "transform": None}
    for size, world_size in ((5, 1), (6, 2), (5, 3), (40, 2)):  # the last: one host has 4 of 40
        hosts = [
            pipeline(**once, batch_size=size, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        for _ in range(2):  # each iteration is the same pass
            parts = [take(iter(host), 100) for host in hosts]
            assert len({len(part) for part in parts}) == 1
            assert {batch["number"].shape for part in parts for batch in part} == {(size, 8)}
            # All hosts' first batches, then all their second ones.
            found = np.concatenate([b["number"] for step in zip(*parts, strict=True) for b in step])
            np.testing.assert_array_equal(found[: len(whole), 0], whole)
            assert not found[len(whole) :].any()


def _note_worker(worker, workers):
    os.environ["NOTED"] = f"{worker} of {workers}"


def noting(rows, out, draw):
    transform.function(rows, out, draw)
    assert os.environ["NOTED"] in ("0 of 2", "1 of 2")


def test_slices_and_a_worker_s_first_call_are_grains_to_make(pipeline, plain):
    noted = hr.RowTransform(noting, outputs=transform.outputs)
    options = {"epochs": 1, "num_workers": 2, "worker_init_fn": _note_worker, "transform": noted}
    batches = iter(pipeline(**options, batch_size=4, sequential_slice=True))
    found = take(batches, 100)
    batches.close()
    expected = plain(11, batch_size=4)
    # Slices of five and of six batches, in turns.
    assert_same(found, [expected[n] for n in (0, 5, 1, 6, 2, 7, 3, 8, 4, 9, 10)])
    for endless in ({"sequential_slice": True}, {"remainder": "pad"}):
        with pytest.raises(UsageError, match="without epochs"):
            pipeline(**endless)


def test_a_pipeline_may_continue_with_grains_own_steps_and_keeps_its_state(pipeline, plain):
    dataset = pipeline().map(lambda batch: {"first": batch["numbers"][:, 0]})
    expected = [{"first": batch["numbers"][:, 0]} for batch in plain(9)]
    batches = iter(dataset)
    assert_same(take(batches, 4), expected[:4])
    again = iter(dataset)
    again.set_state(batches.get_state())
    assert_same(take(again, 5), expected[4:])


def test_orbax_or_grains_handler_finds_a_state_in_json(pipeline):
    batches = iter(pipeline())
    next(batches)
    assert json.loads(json.dumps(batches.get_state()))["draws"] == 5


def test_the_source_is_one_for_grains_own_datasets_and_data_loader(rows, data, tmp_path):
    source = WindowSource(rows, transform)
    assert len(source) == 44
    assert source[12]["numbers"].tolist() == list(range(96, 104))
    assert source[-1]["what"].tolist() == [43, 0, 0]
    again = pickle.loads(pickle.dumps(source))
    assert repr(again) == repr(source)
    assert again[7]["numbers"].tolist() == source[7]["numbers"].tolist()
    shuffled = grain.MapDataset.source(source).seed(1).shuffle()
    assert sorted(int(shuffled[n]["what"][0]) for n in range(44)) == list(range(44))

    def loader(source):
        sampler = grain.samplers.IndexSampler(44, shuffle=True, seed=5, num_epochs=1)
        return grain.DataLoader(data_source=source, sampler=sampler, worker_count=0)

    batches = iter(loader(source))
    first = [int(next(batches)["what"][0]) for _ in range(10)]
    state = batches.get_state()
    shutil.copytree(data, tmp_path / "copy")  # elsewhere, as on another machine
    other = WindowSource(hr.RowSet(tmp_path / "copy", columns=["number"], window=8), transform)
    resumed = iter(loader(other))
    resumed.set_state(state)
    rest = [int(element["what"][0]) for element in resumed]
    assert sorted(first + rest) == list(range(44))


def test_headraces_order_is_one_of_grains_map_datasets(rows, plain):
    dataset = map_dataset(WindowSource(rows, transform, seed=3), epochs=2)
    assert len(dataset) == 88
    batched = dataset.batch(5, drop_remainder=True)
    assert_same([batched[n] for n in range(17)], plain(17))


def test_a_state_of_other_data_says_what_differs(pipeline, data):
    other = hr.RowSet(data, columns=["number"], window=8, stride=4)
    state = iter(grain_pipeline(other, batch_size=2, seed=3)).get_state()
    with pytest.raises(UsageError, match="stride was 4, is 8"):
        iter(pipeline()).set_state(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0, "world_size": 45}, "45 .*44"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"shuffle": "some"}, "shuffle is 'some'"),
    ],
)
def test_options_that_make_no_sense_are_named(pipeline, options, message):
    with pytest.raises(UsageError, match=message):
        pipeline(**options)


def test_a_source_and_its_pipeline_agree_on_seed_and_transform(rows, plain):
    source = WindowSource(rows, transform, seed=3)
    assert_same(take(iter(grain_pipeline(source, batch_size=5, num_threads=1)), 2), plain(2))
    with pytest.raises(UsageError, match="seed 3 .* 0"):
        grain_pipeline(source, batch_size=2, seed=0)
    with pytest.raises(UsageError, match="WindowSource .*transform"):
        grain_pipeline(source, batch_size=2, seed=3, transform=transform)


def test_options_that_grain_decides_on_are_refused(pipeline, rows, mixture):
    with pytest.raises(UsageError, match="grain_pipeline .*'memory'"):
        pipeline(memory="1GiB")
    with pytest.raises(UsageError, match="map_dataset .*'batch_size'"):
        map_dataset(WindowSource(rows), batch_size=2)
    with pytest.raises(UsageError, match="SampleSource .*'workers'"):
        SampleSource(mixture, image_size=32, workers=2)
    with pytest.raises(UsageError, match="from_dict"):
        SampleSource({"sources": [{"name": "bridge"}]})
    with pytest.raises(UsageError, match="batch_size is '8'"):
        grain_pipeline(rows, batch_size="8")
    with pytest.raises(UsageError, match="image_sise.*image_size"):
        SampleSource(mixture, image_sise=32)


# -- mixtures of RLDS datasets -----------------------------------------------------------------


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    root = tmp_path_factory.mktemp("grain_oxe")
    synthesize(root, only=["bridge", "kuka"], episodes=3, seed=5, _max_steps=7)
    return hr.Mixture.from_dict(
        {
            "root": str(root),
            "defaults": {"split": "train", "offset": 2, "weight": 1.0},
            "sources": [{"name": "bridge"}, {"name": "kuka"}],
        }
    )


def test_a_mixture_of_rlds_datasets_has_random_access_and_the_loaders_batches(mixture):
    source = SampleSource(mixture, image_size=32, seed=4)
    pipeline = grain_pipeline(source, batch_size=3, seed=4, num_threads=2)
    batches = iter(pipeline)
    with hr.Loader(mixture, batch_size=3, image_size=32, seed=4, workers=0, keep_free=0) as loader:
        for _ in range(6):
            mine, expected = next(batches), next(loader)
            np.testing.assert_array_equal(mine["frames"], expected.frames)
            np.testing.assert_array_equal(mine["action"], expected.action)
            np.testing.assert_array_equal(mine["dataset"], expected.dataset)
            assert mine["language"].tolist() == expected.language
        state = batches.get_state()
        assert state == loader.state_dict()
        np.testing.assert_array_equal(source[0]["frames"], map_dataset(source)[0]["frames"])
        again = pickle.loads(pickle.dumps(source))
        assert repr(again) == repr(source)
        resumed = iter(grain_pipeline(again, batch_size=3, seed=4, num_threads=1))
        resumed.set_state(state)
        np.testing.assert_array_equal(next(resumed)["frames"], next(loader).frames)
