"""Every backend of a benchmark delivers the same samples in the same shape, and ends cleanly."""

import itertools
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from importlib.util import find_spec

import cv2
import numpy as np
import pytest

import headrace as hr
from benchmarks.baselines.stored import Converter
from headrace.decoding.resize import resize_into
from headrace.errors import UsageError
from headrace.loader.samples import MixtureSamples
from headrace.measure.baselines import BASELINES, NOT_RUN, find_baseline
from headrace.measure.baselines.baseline import (
    Baseline,
    check_installed,
    child_processes,
)
from headrace.measure.job import Job
from headrace.testing import synthesize

# Small pictures as JPEG and PNG, code points, a robot that is named, texts, no state.
SHARES = {"language_table": 0.15, "utaustin_mutex": 0.5, "kuka": 0.05, "taco_play": 0.3}
STORED_PAIRS = ("webdataset", "mosaic")

pytestmark = [
    # Frameworks warn of their own futures and of forks; what they warn of is theirs.
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("baselines")
    synthesize(root, only=list(SHARES), episodes=5, seed=3, _max_steps=9)
    return root


def make_job(data, weights=SHARES, **settings):
    source = {key: settings.pop(key) for key in ("samples_per_episode",) if key in settings}
    mixture = hr.Mixture.from_dict(
        {
            "root": str(data),
            "defaults": {"split": "train[:4]", "offset": 2, **source},
            "sources": [{"name": name, "weight": weight} for name, weight in weights.items()],
        }
    )
    options = settings.pop("options", {})
    loader = {"batch_size": 8, "image_size": 32, "workers": 2, **settings}
    return Job(mixture, hr.LoaderOptions(**loader), options)


@pytest.fixture(params=BASELINES)
def baseline(request):
    found = find_baseline(request.param)
    for module in found.needs:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    return found


@pytest.fixture(scope="module")
def folders(data, tmp_path_factory):
    """Where the data of a baseline are, converted when they are first requested."""
    made = {}

    def of(baseline):
        if baseline.convert is None:
            return None
        if baseline.name not in made:
            folder = tmp_path_factory.mktemp(baseline.name)
            # Another mixture of the same samples: weights are no part of what is stored.
            conversion = baseline.convert(make_job(data, dict.fromkeys(SHARES, 1.0)), folder)
            assert conversion.seconds > 0
            assert conversion.bytes == sum(
                path.stat().st_size for path in folder.rglob("*") if path.is_file()
            )
            made[baseline.name] = folder
        return made[baseline.name]

    return of


@contextmanager
def opened(baseline, job, folders):
    """A baseline at work, which leaves nothing behind."""
    folder = folders(baseline)
    threads, processes = set(threading.enumerate()), child_processes()
    with baseline.open(job, folder) as backend:
        yield backend
    assert not child_processes() - processes
    left = [thread for thread in threading.enumerate() if thread not in threads]
    for thread in left:
        thread.join(60)  # Grain's finish the batch they are at
    assert not [thread for thread in left if thread.is_alive()]


def rows(batch):
    return [
        (batch.names[d], int(e), int(t))
        for d, e, t in zip(batch.dataset, batch.episode_id, batch.frame_idx, strict=True)
    ]


def pairs(samples):
    """All (source, episode, t) there are, by the plainest means."""
    found = []
    for source, episodes in zip(samples.sources, samples.episodes, strict=True):
        catalog = source.catalog
        for episode in episodes.tolist():
            info = catalog.info(episode)
            shard = [stamp.file for stamp in catalog.manifest.shards].index(info.file)
            number = shard << 32 | info.record
            found += [(source.name, number, t) for t in range(info.steps - source.k)]
    return found


def test_no_worker_is_forked_while_opencv_has_threads(baseline, data, folders):
    # A forked child that sets their number would wait for threads that it does not have.
    if baseline.name == "tfdata":
        pytest.skip("it decodes without OpenCV")
    cv2.setNumThreads(2)
    with opened(baseline, make_job(data), folders) as backend:
        next(iter(backend))
        assert cv2.getNumThreads() == 1


def test_batches_hold_what_the_catalog_holds(baseline, data, folders):
    job = make_job(data, dict.fromkeys(SHARES, 1.0), image_size=48)
    samples = MixtureSamples(job.mixture, job.loader)
    decoded = np.empty((48, 48, 3), np.uint8)
    seen = set()
    with opened(baseline, job, folders) as backend:
        assert backend.names == samples.names
        for batch in itertools.islice(backend, 6):
            assert batch.names == samples.names
            assert (batch.frames.shape, batch.frames.dtype) == ((8, 2, 48, 48, 3), np.uint8)
            assert (batch.draws.shape, batch.draws.dtype) == ((8,), np.int64)
            for name, spec in samples.specs.items():
                array = getattr(batch, name)
                assert type(array) is np.ndarray
                assert (array.shape, array.dtype) == ((8, *spec.shape[1:]), spec.dtype), name
            for row, (name, number, t) in enumerate(rows(batch)):
                source = samples.sources[samples.names.index(name)]
                catalog = source.catalog
                seen.add(name)
                episode = catalog.first_rows[number >> 32] + (number & 0xFFFFFFFF)
                for place, step in enumerate((t, t + 2)):
                    resize_into(catalog.frame(episode, step, source.camera.key), decoded)
                    difference = np.abs(batch.frames[row, place].astype(int) - decoded)
                    assert difference.max() <= 1
                assert batch.offset[row] == 2
                assert batch.language[row] == catalog.instruction(episode, t).strip("\0")
                assert batch.robot[row] == (source.robot[episode] if source.robot else "")
                for role, got in ((source.action, batch.action), (source.state, batch.state)):
                    if role is None:
                        assert not got[row].any()
                        continue
                    stop = t + (2 if role is source.action else 1)
                    values = np.asarray(catalog.read(episode, role.field.key, t, stop), np.float32)
                    expected = values.reshape(len(values), -1)[:, : role.dim].sum(axis=0)
                    np.testing.assert_allclose(got[row, : role.dim], expected, rtol=1e-5)
                    assert not got[row, role.dim :].any()
        figures = backend.figures()
        assert figures["threads"] >= 1
        assert isinstance(figures["processes"], list)
    assert seen == set(SHARES)


def test_shares_are_as_requested_and_the_order_is_mixed(baseline, data, folders):
    job = make_job(data, batch_size=50, image_size=16, metadata="dataset")
    counts: Counter[str] = Counter()
    with opened(baseline, job, folders) as backend:
        for batch in itertools.islice(backend, 20):
            assert batch.episode_id is None
            assert len({backend.names[number] for number in batch.dataset}) > 1
            counts.update(backend.names[number] for number in batch.dataset)
    assert sum(counts.values()) == 1000
    for name, share in SHARES.items():
        assert counts[name] / 1000 == pytest.approx(share, abs=0.06), name


def test_frames_alone_and_an_end_before_the_first_batch(baseline, data, folders):
    job = make_job(data, metadata="none")
    with opened(baseline, job, folders) as backend:
        batch = next(iter(backend))
        assert batch.frames.shape == (8, 2, 32, 32, 3)
        assert batch.dataset is None
    with opened(baseline, job, folders):
        pass


def test_an_error_of_the_consumer_ends_the_workers_too(baseline, data, folders):
    before = child_processes()
    with (
        pytest.raises(ZeroDivisionError),
        baseline.open(make_job(data), folders(baseline)) as backend,
    ):
        for _ in backend:
            raise ZeroDivisionError
    assert child_processes() == before


def test_starts_are_drawn_again_in_every_pass_or_refused(baseline, data, folders):
    if baseline.name == "tfdata":
        pytest.skip("its shuffle buffer reaches across passes; test_tfdata counts them")
    job = make_job(data, {"utaustin_mutex": 1.0}, samples_per_episode=1, image_size=16)
    if baseline.name in STORED_PAIRS:
        with pytest.raises(UsageError, match="samples_per_episode is 1"):
            baseline.convert(job, folders(baseline) / "more")
        with (
            pytest.raises(UsageError, match="samples_per_episode"),
            baseline.open(job, folders(baseline)),
        ):
            pass
        return
    if baseline.convert:
        only = lambda _: folder  # noqa: E731
        folder = folders(baseline) / "one_source"
        folder.mkdir()
        baseline.convert(job, folder)
    else:
        only = folders
    with opened(baseline, job, only) as backend:
        taken = [row for batch in itertools.islice(backend, 6) for row in rows(batch)]
    passes = [taken[first : first + 4] for first in range(0, 48, 4)]
    for each in passes:
        assert len({episode for _, episode, _ in each}) == 4
    assert len({frozenset(each) for each in passes}) > 1


def test_an_option_that_a_backend_does_not_have_is_an_error(baseline, data, folders):
    job = make_job(data, options={"wrokers": 3})
    with (
        pytest.raises(UsageError, match="wrokers"),
        baseline.open(job, folders(baseline)),
    ):
        pass


def test_torch_has_the_native_order_to_the_byte(data, folders):
    pytest.importorskip("torch")
    job = make_job(data, seed=5)
    with opened(find_baseline("headrace"), job, folders) as backend:
        native = [(batch, batch.frames.copy()) for batch in itertools.islice(backend, 3)]
    with opened(find_baseline("torch"), job, folders) as backend:
        for (ours, frames), theirs in zip(native, backend, strict=False):
            assert rows(ours) == rows(theirs)
            np.testing.assert_array_equal(frames, theirs.frames)
            for name in ("draws", "action", "state"):
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
            assert (ours.language, ours.robot) == (theirs.language, theirs.robot)


@pytest.mark.parametrize("name", ["grain", "grain_arrayrecord"])
def test_grain_goes_through_all_pairs_once_a_pass(name, data, folders):
    baseline = find_baseline(name)
    for module in baseline.needs:
        pytest.importorskip(module)
    job = make_job(data, dict.fromkeys(SHARES), batch_size=4, image_size=16)
    wanted = Counter(pairs(MixtureSamples(job.mixture, job.loader)))
    sizes = Counter(name for name, _, _ in wanted)
    seen: dict[str, list] = {name: [] for name in SHARES}
    with opened(baseline, job, folders) as backend:
        for batch in backend:
            for row in rows(batch):
                seen[row[0]].append(row)
            if all(len(seen[name]) >= sizes[name] for name in SHARES):
                break
    assert Counter(row for name in SHARES for row in seen[name][: sizes[name]]) == wanted


def test_grain_can_use_worker_processes(data, folders):
    pytest.importorskip("grain")
    job = make_job(data, {"utaustin_mutex": 1.0}, options={"workers": 1})
    before = child_processes()
    with find_baseline("grain").open(job, None) as backend:
        for batch in itertools.islice(backend, 3):
            assert batch.frames.shape == (8, 2, 32, 32, 3)
        assert len(backend.figures()["processes"]) == 1
    assert child_processes() == before


def test_what_is_stored_is_every_pair_and_every_step_once(data):
    converter = Converter(make_job(data))
    samples, width = converter.samples, converter.stored.dtype.itemsize
    found = []
    for number, name in enumerate(samples.names):
        order = []
        for pair in converter.shuffled(number):
            about = np.frombuffer(pair.about[:width], converter.stored.dtype)[0]
            order.append((name, int(about["episode_id"]), int(about["frame_idx"])))
        assert order != sorted(order)
        found += order
        steps = list(converter.steps(number))
        assert len(steps) == samples.sources[number].steps(samples.episodes[number]).sum()
        assert sum(bool(about) for _, _, about in steps) == len(order)
    assert Counter(found) == Counter(pairs(samples))


def test_converted_data_must_be_there_and_of_the_same_samples(data, folders, tmp_path):
    baseline = find_baseline("grain_arrayrecord")
    for module in baseline.needs:
        pytest.importorskip(module)
    with (
        pytest.raises(UsageError, match=tmp_path.name),
        baseline.open(make_job(data), tmp_path),
    ):
        pass
    other = make_job(data, {"kuka": 1.0})
    with (
        pytest.raises(UsageError, match=folders(baseline).name),
        baseline.open(other, folders(baseline)),
    ):
        pass


def test_a_backend_that_is_not_installed_is_named_with_the_command_that_installs_it():
    absent = Baseline("absent", ("no_such_module", "json"), "pip install it", "none", open=None)
    with pytest.raises(UsageError, match="'absent' .*no_such_module") as caught:
        check_installed(absent)
    assert "json" not in caught.value.problem
    assert "pip install it" in caught.value.remedy
    for name in BASELINES:
        assert find_baseline(name).name == name
        assert find_baseline(name).install.startswith("pip install ")


def test_a_converted_baseline_outside_a_checkout_says_how_to_get_it(monkeypatch, tmp_path):
    installed = tmp_path / "lib" / "site-packages" / "headrace" / "__init__.py"
    monkeypatch.setattr(hr, "__file__", str(installed))
    with pytest.raises(UsageError, match="'webdataset'.*benchmarks.baselines.webdataset") as caught:
        find_baseline("webdataset")
    assert "pip install -e ." in caught.value.remedy
    assert find_baseline("torch").name == "torch"


def test_a_fresh_process_elsewhere_finds_what_is_in_the_checkout(tmp_path):
    code = """if True:
        from headrace.measure.baselines import find_baseline
        print(find_baseline("grain_arrayrecord").name)
    """
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["grain_arrayrecord"]


def test_a_framework_that_cannot_be_imported_says_so(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "streaming", None)
    with pytest.raises(UsageError, match="torchvision"):
        find_baseline("mosaic").convert(make_job(data), tmp_path)


def test_an_unknown_backend_and_one_that_cannot_run_say_what_there_is():
    with pytest.raises(UsageError, match="'grian'") as caught:
        find_baseline("grian")
    assert "'grain'" in caught.value.remedy
    for name in NOT_RUN:
        with pytest.raises(UsageError, match=f"'{name}'") as caught:
            find_baseline(name)
        assert NOT_RUN[name] in caught.value.problem
        assert "headrace" in caught.value.remedy
