"""The tf.data backend: the samples, shares and metadata of headrace's own loader."""

import gc
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest

import headrace as hr
from headrace.errors import DataError, SelectionError, SplitError, UsageError
from headrace.measure.baselines import find_baseline
from headrace.measure.baselines.baseline import check_installed
from headrace.measure.baselines.tfdata.options import Options
from headrace.measure.bench import bench
from headrace.measure.job import BenchSettings, Job
from headrace.testing import synthesize

tfds = pytest.mark.tfds
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]

#: JPEG, PNG, code points, slashes in keys, zlib doubles, robot names, no state, no action.
NAMES = ("bridge", "utaustin_mutex", "language_table", "bc_z", "droid", "robonet", "tidybot")
SIZE = 48


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Seven datasets of four short episodes. Do not change them."""
    root = tmp_path_factory.mktemp("tfdata")
    synthesize(root, only=NAMES, episodes=4, seed=3, _max_steps=8)
    return root


def mixture(root, names=NAMES, weights=None, **defaults):
    weights = weights or {}
    return hr.Mixture.from_dict(
        {
            "root": str(root),
            "defaults": {"split": "train[:3]", "offset": 2, "weight": 1.0, **defaults},
            "sources": [
                {"name": name, **({"weight": weights[name]} if name in weights else {})}
                for name in names
            ],
        }
    )


def job(mixture, *, batch_size=8, metadata="full", seed=0, **options):
    loader = hr.LoaderOptions(batch_size=batch_size, image_size=SIZE, metadata=metadata, seed=seed)
    return Job(mixture, loader, {"shuffle.global_buffer": 16, **options})


def one_pass(job):
    """All batches of one pass over every source."""
    from headrace.measure.baselines.tfdata.batches import TfdataBatches

    opened = TfdataBatches(job, repeat=False)
    try:
        return list(opened)
    finally:
        opened.close()


def samples(batches):
    """(source, episode, t) -> everything else of that sample; a sample that comes twice fails."""
    found = {}
    for batch in batches:
        for row in range(len(batch)):
            key = (
                batch.names[batch.dataset[row]],
                int(batch.episode_id[row]),
                int(batch.frame_idx[row]),
            )
            assert key not in found
            found[key] = {
                "frames": batch.frames[row].copy(),
                "offset": int(batch.offset[row]),
                "action": batch.action[row].copy(),
                "state": batch.state[row].copy(),
                "language": batch.language[row],
                "robot": batch.robot[row],
            }
    return found


def native_samples(mixture):
    """All samples of the mixture's splits, by the loader's validation pass."""
    whole = hr.Mixture.from_dict(
        {
            **mixture.to_dict(),
            "sources": [
                {**source, "val_split": source["split"]} for source in mixture.to_dict()["sources"]
            ],
        }
    )
    options = {"batch_size": 8, "image_size": SIZE, "keep_free": 0, "workers": 2}
    with hr.Loader(whole, action="sum", **options) as loader:
        return samples(loader.validation())


# -- the same samples ----------------------------------------------------------------------------


@tfds
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tfds_read.skip_steps_decoding": False, "tfds_read.only_needed_fields": False},
        {"pipeline.emit_encoded_pairs": False, "pipeline.post_mix_decode_resize": False},
        {"mixing.strategy": "python", "mixing.mix_block_length": 3},
    ],
    ids=["default", "plain_tfds", "decoded_first", "python"],
)
def test_one_pass_has_exactly_the_samples_of_the_loader(root, options):
    wanted = mixture(root)
    theirs, ours = samples(one_pass(job(wanted, **options))), native_samples(wanted)
    assert theirs.keys() == ours.keys()
    assert len({name for name, _, _ in ours}) == len(NAMES)
    for key, mine in ours.items():
        other = theirs[key]
        difference = np.abs(other["frames"].astype(int) - mine["frames"].astype(int))
        assert difference.max() <= 1
        for name in ("action", "state"):
            assert other[name].shape == mine[name].shape
            np.testing.assert_allclose(other[name], mine[name], rtol=1e-5, atol=1e-6)
        for name in ("language", "offset", "robot"):
            assert other[name] == mine[name]


@tfds
def test_samples_per_episode_gives_so_many_of_every_episode_in_a_pass(root):
    wanted = mixture(root, samples_per_episode=3)
    counts = Counter()
    starts = {}
    for batch in one_pass(job(wanted)):
        for row in range(len(batch)):
            episode = batch.names[batch.dataset[row]], int(batch.episode_id[row])
            counts[episode] += 1
            starts.setdefault(episode, set()).add(int(batch.frame_idx[row]))
    episodes = {(name, episode) for name, episode, _ in native_samples(mixture(root))}
    assert counts == dict.fromkeys(episodes, 3)
    assert any(max(found) > 0 for found in starts.values())


@tfds
def test_one_sample_per_episode_is_not_always_the_first(root):
    wanted = mixture(root, ["bridge"], samples_per_episode=1)
    with find_baseline("tfdata").open(job(wanted), None) as opened:
        batches = iter(opened)
        seen = {int(t) for _ in range(8) for t in next(batches).frame_idx}
    assert len(seen) > 2


@tfds
def test_the_seed_decides_the_order_where_tf_data_can_keep_one(root):
    def order(seed):
        wanted = job(mixture(root), seed=seed, **{"pipeline.deterministic": True})
        with find_baseline("tfdata").open(wanted, None) as opened:
            batches = iter(opened)
            found = [next(batches) for _ in range(6)]
            return [
                (int(b.dataset[i]), int(b.episode_id[i]), int(b.frame_idx[i]))
                for b in found
                for i in range(len(b))
            ]

    first = order(1)
    assert order(1) == first
    assert order(2) != first


# -- shares --------------------------------------------------------------------------------------


@tfds
@pytest.mark.parametrize("strategy", ["sample", "choose", "python"])
def test_shares_are_those_of_the_weights_and_a_weight_of_zero_is_dropped(root, strategy):
    weights = {"bridge": 0.5, "utaustin_mutex": 0.3, "bc_z": 0.2, "droid": 0.0, "tidybot": -1.0}
    wanted = mixture(root, tuple(weights), weights)
    options = {"mixing.strategy": strategy, "shuffle.global_buffer": 0}
    counts = Counter()
    with find_baseline("tfdata").open(
        job(wanted, batch_size=64, metadata="dataset", **options), None
    ) as opened:
        assert opened.names == ("bridge", "utaustin_mutex", "bc_z")
        batches = iter(opened)
        for _ in range(32):
            counts.update(opened.names[i] for i in next(batches).dataset)
    total = sum(counts.values())
    assert total == 2048
    for name in opened.names:
        share = weights[name]
        sigma = (total * share * (1 - share)) ** 0.5
        assert abs(counts[name] - total * share) < 4 * sigma


@tfds
def test_proportional_weights_are_resolved_as_by_the_loader(root):
    wanted = mixture(root, ("bridge", "bc_z"), {"bridge": None, "bc_z": None})
    with find_baseline("tfdata").open(job(wanted), None) as opened:
        shares = opened.figures()["asked"]
    pairs = Counter(name for name, _, _ in native_samples(wanted))
    total = sum(pairs.values())
    assert shares == pytest.approx({name: count / total for name, count in pairs.items()})


# -- mixing, iterating, closing ------------------------------------------------------------------


@tfds
@pytest.mark.parametrize(
    "options",
    [
        {"mixing.strategy": "sample", "mixing.mix_block_length": 4},
        {"mixing.strategy": "choose", "mixing.selector_run_length": 3},
        {
            "mixing.strategy": "choose",
            "mixing.parallelism_mode": "sqrt",
            "mixing.per_dataset_private_threadpool_size": 2,
            "pipeline.episode_concurrency": 2,
            "pipeline.interleave_parallelism": 2,
            "tfds_read.cycle_length": 2,
            "tfds_read.interleave_parallelism": 2,
            "tfds_read.decode_parallelism": 2,
            "prefetch.per_dataset_stream_buffer": 1,
            "prefetch.episode_queue_buffer": 1,
            "shuffle.episode_buffer": 2,
            "shuffle.intra_episode_buffer": 8,
        },
        {
            "mixing.strategy": "python",
            "mixing.python_prefetch_threads": 2,
            "mixing.python_prefetch_queue_size": 1,
            "mixing.python_prefetch_min_ready_datasets": 3,
        },
        {
            "mixing.strategy": "python",
            "mixing.mix_block_length": 4,
            "pipeline.post_mix_decode_resize": False,
            "prefetch.final_stream_buffer": 0,
        },
    ],
    ids=["sample", "choose", "choose_all_knobs", "python", "python_decoded"],
)
def test_every_way_of_mixing_delivers_and_ends_its_threads(root, options):
    wanted = job(mixture(root), **options)
    before = set(threading.enumerate())
    with find_baseline("tfdata").open(wanted, None) as opened:
        batches = iter(opened)
        for _ in range(12):
            batch = next(batches)
            assert batch.frames.shape == (8, 2, SIZE, SIZE, 3)
            assert batch.frames.dtype == np.uint8
            assert batch.action.dtype == batch.state.dtype == np.float32
            assert batch.episode_id.dtype == np.int64
            assert batch.dataset.dtype == batch.offset.dtype == batch.frame_idx.dtype == np.int32
        del batch
        during = len(os.listdir("/proc/self/task"))
    assert len(os.listdir("/proc/self/task")) < during - 3  # TensorFlow's own, of this pipeline
    del batches
    gc.collect()
    assert set(threading.enumerate()) <= before


@tfds
@pytest.mark.parametrize("strategy", ["sample", "python"])
def test_a_second_loop_continues_or_builds_its_pipelines_again(root, strategy):
    def numbers(persistent):
        options = {"mixing.strategy": strategy, "iterator.persistent": persistent}
        with find_baseline("tfdata").open(job(mixture(root), **options), None) as opened:
            first = next(iter(opened))
            kept = opened._iterator
            second = next(iter(opened))
            assert first.draws.tolist() == list(range(8))
            assert second.draws.tolist() == list(range(8, 16))
            return opened._iterator is kept

    assert numbers(persistent=True)
    assert not numbers(persistent=False)


@tfds
@pytest.mark.parametrize("strategy", ["sample", "python"])
@pytest.mark.parametrize("mode", ["none", "dataset", "full"])
def test_metadata_modes_fill_what_the_loader_fills(root, strategy, mode):
    wanted = mixture(root, ("bridge", "robonet"))
    with hr.Loader(
        wanted, batch_size=8, image_size=SIZE, keep_free=0, workers=2, metadata=mode
    ) as loader:
        ours = next(loader)
        filled = {name for name in ours.__slots__ if getattr(ours, name) is not None}
    options = {"mixing.strategy": strategy}
    with find_baseline("tfdata").open(job(wanted, metadata=mode, **options), None) as opened:
        theirs = next(iter(opened))
    assert {name for name in theirs.__slots__ if getattr(theirs, name) is not None} == filled
    if mode == "full":
        assert theirs.action.shape == ours.action.shape
        assert theirs.state.shape == ours.state.shape
        assert any(theirs.robot)


@tfds
def test_the_metadata_mode_can_be_given_as_the_original_named_it(root):
    options = {"metadata.mode": "dataset_only"}
    with find_baseline("tfdata").open(job(mixture(root, ["bridge"]), **options), None) as opened:
        batch = next(iter(opened))
    assert batch.dataset is not None
    assert batch.episode_id is None


@tfds
def test_a_dataset_without_a_local_copy_is_read_from_where_it_is_published(root, tmp_path, caplog):
    away = hr.Mixture.from_dict(
        {**mixture(root, ["bridge", "robonet"]).to_dict(), "root": str(tmp_path)}
    )
    ours = native_samples(mixture(root, ["bridge", "robonet"]))
    with caplog.at_level("WARNING", "headrace"):
        theirs = samples(one_pass(job(away, remote_root=str(root))))
    (said,) = [line for line in caplog.messages if "over the network" in line]
    assert all(word in said for word in ("bridge", "robonet", str(root)))
    assert theirs.keys() == ours.keys()
    key = next(iter(ours))
    assert theirs[key]["language"] == ours[key]["language"]
    with pytest.raises(hr.HeadraceError, match="bridge"):
        one_pass(job(away, source="local"))
    with pytest.raises(SelectionError, match="nowhere"):
        one_pass(job(away, remote_root=str(tmp_path / "nowhere")))


@tfds
def test_a_run_records_which_sources_were_remote_and_its_closing_time(root, tmp_path, caplog):
    known = hr.known_dataset("bridge")
    shutil.copytree(root / known.folder, tmp_path / known.folder)
    partly = hr.Mixture.from_dict(
        {**mixture(root, ["bridge", "robonet"]).to_dict(), "root": str(tmp_path)}
    )
    settings = BenchSettings(seconds=None, steps=2, warmup=1, warmup_seconds=0.0)
    wanted = job(partly, remote_root=str(root))
    folder, result = bench(
        wanted, "tfdata", settings, runs=tmp_path / "runs", limit=False, draw=False, profile=True
    )
    assert result["status"] == "complete", result["cause"]
    assert list(result["remote_sources"]) == ["robonet"]
    assert "robonet" in caplog.text
    assert result["close_s"] >= 0
    assert list(folder.glob("plugins/profile/*/*.xplane.pb"))  # TensorFlow's own
    assert find_baseline("tfdata").remote(job(mixture(root, ["bridge"]))) == {}


@tfds
def test_damaged_data_is_an_error_that_says_what_to_do(root, tmp_path):
    known = hr.known_dataset("bridge")
    hr.Catalog.open(root / known.folder)  # indexed before it is damaged: tf.data must notice
    shutil.copytree(root / known.folder, tmp_path / known.folder)
    for shard in (tmp_path / known.folder).glob("*-train.tfrecord-*"):
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 0xFF
        stamp = shard.stat()
        shard.write_bytes(data)
        os.utime(shard, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(DataError, match="tf.data") as caught:
        one_pass(job(mixture(tmp_path, ["bridge"])))
    assert "headrace verify" in caught.value.remedy


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem", "remedy"),
    [
        (
            {"tfds_read.interleave_parallelism": 4, "tfds_read.cycle_length": 2},
            "tfds_read.interleave_parallelism is 4.*tfds_read.cycle_length.* 2",
            "Raise tfds_read.cycle_length to 4",
        ),
        (
            {"pipeline.interleave_parallelism": 2, "pipeline.episode_concurrency": 1},
            "pipeline.interleave_parallelism is 2.*pipeline.episode_concurrency.* 1",
            "pipeline.episode_concurrency to 2",
        ),
        (
            {"pipeline.emit_encoded_pairs": False},
            "post_mix_decode_resize is true.*emit_encoded_pairs",
            "pipeline.post_mix_decode_resize to false",
        ),
        (
            {"mixing.selector_run_length": 4},
            "mixing.selector_run_length is 4.*mixing.strategy is 'sample'",
            "mix_block_length",
        ),
        ({"mixing.strategy": "chose"}, "mixing.strategy is 'chose'", "'choose'"),
        ({"mixing.stratgy": "choose"}, "mixing.stratgy", "'strategy'"),
        ({"mixing": "choose"}, "mixing is 'choose'", "strategy"),
        ({"strategy.of.mixing": 1}, "strategy.of", "mixing"),
        ({"prefetch.final_stream_buffer": -2}, "prefetch.final_stream_buffer is -2", "-1"),
        ({"tfds_read.decode_parallelism": 0}, "decode_parallelism is 0", "from 1 on, or -1"),
        ({"shuffle.global_buffer": True}, "shuffle.global_buffer is True", "whole number"),
        ({"pipeline.deterministic": 1}, "pipeline.deterministic is 1", "true or false"),
        ({"metadata.mode": "ful"}, "metadata.mode is 'ful'", "full"),
        ({"sampling.samples_per_episode": -1}, "sampling.samples_per_episode is -1", "from 0"),
        ({"source": "gcs"}, "source is 'gcs'", "auto, local"),
        ({"remote_root": ""}, "remote_root is ''", "address"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_work_is_refused_with_key_value_and_remedy(options, problem, remedy):
    with pytest.raises(UsageError, match=rf"tfdata\..*{problem}") as caught:
        Options.from_values(options)
    assert remedy in caught.value.remedy


def test_options_are_read_back_from_their_dotted_keys():
    options = Options.from_values({"mixing.strategy": "choose", "source": "local"})
    assert (options.mixing.strategy, options.source) == ("choose", "local")
    assert Options.from_values(options.flat()) == options
    assert find_baseline("tfdata").options == Options().flat()


def test_a_bad_option_and_a_missing_split_are_found_without_tensorflow(root, tmp_path):
    code = f"""if True:
        import sys
        import headrace as hr
        from headrace.measure.job import Job
        from headrace.measure.baselines import find_baseline

        def attempt(split, options):
            source = hr.Source("bridge", split=split)
            job = Job(hr.Mixture((source,), {str(root)!r}), options=options)
            try:
                with find_baseline("tfdata").open(job, None):
                    pass
            except hr.HeadraceError as error:
                print(type(error).__name__, "tensorflow" in sys.modules)

        attempt("train", {{"tfds_read.interleave_parallelism": 2}})
        attempt("train[:0]", {{}})
    """
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["UsageError", "False", "SplitError", "False"]


def test_the_backend_says_what_to_install(monkeypatch):
    monkeypatch.setattr("headrace.measure.baselines.baseline.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="tensorflow") as caught:
        check_installed(find_baseline("tfdata"))
    assert "pip install 'headrace[tf]'" in caught.value.remedy


def test_how_it_shuffles_is_said_of_the_options_that_are_given(root):
    baseline = find_baseline("tfdata")
    for buffer, words in ((0, "none"), (77, "77")):
        wanted = Job(mixture(root), options={"shuffle.global_buffer": buffer})
        assert words in baseline.shuffle_of(wanted)


@tfds
def test_validation_draws_from_the_validation_splits_with_pipelines_of_its_own(root):
    wanted = job(mixture(root, ("bridge", "droid"), val_split="train[3:]"))
    with find_baseline("tfdata").open(wanted, None) as opened:
        training = iter(opened)
        seen = {int(e) for e in next(training).episode_id}
        passed = list(opened.validation(2))
        held_out = {int(e) for batch in passed for e in batch.episode_id}
        assert len(passed) == 2
        assert held_out
        assert not held_out & seen
        assert not held_out & {int(e) for e in next(training).episode_id}  # training continues


def test_validation_without_validation_splits_is_refused(root):
    from headrace.measure.baselines.tfdata.batches import _validation_mixture

    with pytest.raises(SplitError) as caught:
        _validation_mixture(mixture(root, ("bridge",)))
    assert "val_split" in caught.value.remedy
