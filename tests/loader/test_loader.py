"""The loader: right samples in the right order, whatever the threads, ranks and batch sizes."""

import hashlib
import signal
import subprocess
import sys
import textwrap
from collections import Counter

import numpy as np
import pytest

import headrace as hr
from headrace.decoding.resize import resize_into
from headrace.errors import UsageError
from headrace.loader.loader import feed_of
from headrace.loader.mixture import WindowSpec
from headrace.testing import find_object, read_tag
from tests.loader.conftest import NAMES, make_mixture


def digest(batch):
    """A batch as one number: everything in it, to the byte."""
    parts = [batch.frames.tobytes(), batch.draws.tobytes()]
    for name in ("dataset", "episode_id", "frame_idx", "offset", "action", "state"):
        array = getattr(batch, name)
        parts.append(b"" if array is None else array.tobytes())
    parts.append(repr((batch.language, batch.robot)).encode())
    return hashlib.sha256(b"|".join(parts)).hexdigest()


def rows(batch):
    """Which samples a batch holds."""
    return [
        (batch.names[d], int(e), int(t))
        for d, e, t in zip(batch.dataset, batch.episode_id, batch.frame_idx, strict=True)
    ]


def pairs(loader):
    """All (source, episode, t) there are, by the plainest means."""
    found = set()
    for source in feed_of(loader).sources:
        catalog = source.catalog
        for episode in catalog.episodes(source.split).tolist():
            info = catalog.info(episode)
            shard = [stamp.file for stamp in catalog.manifest.shards].index(info.file)
            for t in range(info.steps - source.k):
                found.add((source.name, shard << 32 | info.record, t))
    return found


@pytest.mark.parametrize("action", ["first", "sum"])
def test_every_pair_comes_exactly_once_a_pass_and_its_content_is_that_of_the_catalog(
    data, loaders, action
):
    mixture = make_mixture(data, weight=None)  # proportional: all sources end a pass together
    loader = loaders(mixture, batch_size=8, image_size=48, action=action)
    wanted = pairs(loader)
    per_source = Counter(name for name, _, _ in wanted)
    seen: dict[str, list] = {name: [] for name in NAMES}
    decoded = np.empty((48, 48, 3), np.uint8)
    by_name = {source.name: source for source in feed_of(loader).sources}
    while any(len(seen[name]) < per_source[name] for name in NAMES):
        batch = next(loader)
        for row, sample in enumerate(rows(batch)):
            name, episode_id, t = sample
            if len(seen[name]) >= per_source[name]:
                continue
            seen[name].append(sample)
            source = by_name[name]
            catalog = source.catalog
            episode = catalog.first_rows[episode_id >> 32] + (episode_id & 0xFFFFFFFF)
            for place, step in enumerate((t, t + source.k)):
                resize_into(catalog.frame(episode, step, source.camera.key), decoded)
                np.testing.assert_array_equal(batch.frames[row, place], decoded)
            assert batch.language[row] == catalog.instruction(episode, t).strip("\0")
            assert batch.offset[row] == source.k
            for role, got in ((source.action, batch.action), (source.state, batch.state)):
                if role is None:
                    assert not got[row].any()
                    continue
                summed = action == "sum" and role is source.action
                stop = t + (source.k if summed else 1)
                values = np.asarray(catalog.read(episode, role.field.key, t, stop), np.float32)
                expected = values.reshape(len(values), -1)[:, : role.dim].sum(axis=0)
                np.testing.assert_allclose(got[row, : role.dim], expected, rtol=1e-6)
                assert not got[row, role.dim :].any()
    for name in NAMES:
        assert len(set(seen[name])) == len(seen[name]) == per_source[name]
    assert {sample for samples in seen.values() for sample in samples} == wanted


def test_the_pictures_are_of_the_samples_and_the_summed_action_is_the_motion_between_them(
    mixture, loaders
):
    loader = loaders(mixture, batch_size=8, image_size=256, action="sum")
    by_name = {source.name: source for source in feed_of(loader).sources}
    for _ in range(6):
        batch = next(loader)
        for row, (name, _, t) in enumerate(rows(batch)):
            first, last = (read_tag(batch.frames[row, place]) for place in (0, 1))
            assert (first.step, last.step) == (t, t + 2)
            assert first.episode == last.episode
            if by_name[name].action is not None:
                moved = np.subtract(*(find_object(batch.frames[row, p]) for p in (1, 0)))
                assert np.abs(moved - batch.action[row, :2]).max() < 0.03


def test_the_same_seed_gives_the_same_bytes_with_any_number_of_threads(mixture, loaders):
    digests = []
    for threads in (1, 2, 8):
        loader = loaders(mixture, workers=threads, seed=7)
        digests.append([digest(next(loader)) for _ in range(30)])
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests[0])) == 30
    other = loaders(mixture, seed=8)
    assert digest(next(other)) != digests[0][0]


def sequence(loader, count):
    """The next samples one by one, whatever the batch size: draw number and content."""
    found = []
    while len(found) < count:
        batch = next(loader)
        for row in range(len(batch)):
            content = hashlib.sha256(batch.frames[row].tobytes()).hexdigest()
            found.append((int(batch.draws[row]), content, batch.language[row]))
    return found[:count]


@pytest.mark.parametrize("again", [{"batch_size": 6}, {"workers": 3}, {"batch_size": 1}])
def test_a_resumed_run_continues_the_same_sequence(mixture, loaders, again):
    straight = sequence(loaders(mixture), 60)
    loader = loaders(mixture)
    sequence(loader, 24)
    state = loader.state_dict()
    assert state["draws"] == 24
    resumed = loaders(mixture, **again)
    resumed.load_state_dict(state)
    assert sequence(resumed, 36) == straight[24:60]


def test_a_state_can_be_loaded_back_into_a_running_loader(mixture, loaders):
    loader = loaders(mixture)
    state = loader.state_dict()
    first = sequence(loader, 16)
    loader.load_state_dict(state)
    assert sequence(loader, 16) == first


def test_ranks_are_disjoint_and_together_the_single_sequence(mixture, loaders):
    straight = sequence(loaders(mixture, batch_size=4), 48)
    ranks = [loaders(mixture, batch_size=2, rank=rank, world_size=3) for rank in range(3)]
    found = [sample for rank in ranks for sample in sequence(rank, 16)]
    assert sorted(found) == straight
    assert len({loader.state_dict()["draws"] for loader in ranks}) == 1
    # A run of three ranks goes on with two.
    state = ranks[0].state_dict()
    pair = [loaders(mixture, batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    for loader in pair:
        loader.load_state_dict(state)
    following = sequence(loaders(mixture, batch_size=8), 64)[48:]
    assert sorted(sample for rank in pair for sample in sequence(rank, 8)) == following


def test_the_environment_of_torchrun_and_slurm_gives_the_rank(mixture, loaders, monkeypatch):
    for rank, world in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
        monkeypatch.setenv(rank, "1")
        monkeypatch.setenv(world, "4")
        assert next(loaders(mixture)).draws.tolist() == [4, 5, 6, 7]
        monkeypatch.delenv(rank)
        monkeypatch.delenv(world)
    with pytest.raises(UsageError, match="rank 4 does not exist in a world of 4"):
        loaders(mixture, rank=4, world_size=4)
    with pytest.raises(UsageError, match="Give both"):
        loaders(mixture, rank=1)


def test_a_run_that_was_killed_continues_exactly(data, mixture, loaders, tmp_path):
    code = textwrap.dedent("""
        import json, os, signal, sys
        import headrace as hr
        mixture = hr.Mixture.from_dict(json.loads(sys.argv[1]))
        loader = hr.Loader(mixture, batch_size=4, image_size=32, keep_free=0)
        for _ in range(5):
            next(loader)
        with open(sys.argv[2], "w") as file:
            json.dump(loader.state_dict(), file)
        next(loader)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    import json

    path = tmp_path / "state.json"
    died = subprocess.run(
        [sys.executable, "-c", code, json.dumps(mixture.to_dict()), str(path)],
        capture_output=True,
        timeout=60,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    loader = loaders(mixture)
    loader.load_state_dict(json.loads(path.read_text()))
    assert sequence(loader, 12) == sequence(loaders(mixture), 32)[20:]


def test_shares_are_exact_over_a_block(data, loaders):
    """Counted over the sampler, because a block has 65,536 draws."""
    mixture = hr.Mixture.from_dict(
        {
            "root": str(data),
            "defaults": {"split": "train", "offset": 2},
            "sources": [
                {"name": "bridge", "weight": 0.5},
                {"name": "droid", "weight": 0.3},
                {"name": "bc_z", "weight": 0.2},
                {"name": "kuka", "weight": 0},
            ],
        }
    )
    loader = loaders(mixture)
    assert loader.names == ("bridge", "droid", "bc_z")
    for block in (0, 3):
        draws = feed_of(loader).sampler.draw(np.arange(block * 65_536, (block + 1) * 65_536))
        assert np.bincount(draws.source).tolist() == [32768, 19661, 13107]
    assert loader.statistics().shares["bridge"] == 0.5


# -- validation ----------------------------------------------------------------------------------


def test_validation_is_one_pass_in_a_fixed_order_with_every_source_in_front(mixture, loaders):
    loader = loaders(mixture, batch_size=7)
    passes = [[(rows(b), digest(b)) for b in loader.validation()] for _ in range(2)]
    assert passes[0] == passes[1]
    assert {name for name, _, _ in passes[0][0][0]} == set(NAMES)
    seen = [sample for samples, _ in passes[0] for sample in samples]
    assert len(seen) == len(set(seen)) == loader.validation_length()
    trained = {(name, episode) for name, episode, _ in pairs(loader)}
    assert not trained & {(name, episode) for name, episode, _ in seen}
    assert len(list(loader.validation(limit_batches=2))) == 2


def test_validation_in_the_middle_of_training_changes_nothing(mixture, loaders):
    straight = sequence(loaders(mixture), 40)
    loader = loaders(mixture)
    found = sequence(loader, 20)
    assert len(list(loader.validation())) > 1
    found += sequence(loader, 20)
    assert found == straight


def test_validation_opens_no_threads_and_no_files_and_stays_within_the_budget(mixture, loaders):
    import os
    import threading

    loader = loaders(mixture, workers=0)
    sequence(loader, 40)
    list(loader.validation())
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        for _ in loader.validation():
            assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files
    figures = loader.statistics().engine
    assert figures.budget.peak <= figures.budget.limit


def test_an_abandoned_validation_gives_its_slots_back(mixture, loaders):
    loader = loaders(mixture)
    sequence(loader, 8)
    for _ in range(20):
        validation = loader.validation()
        next(validation)
        del validation
    sequence(loader, 8)
    assert len(loader.statistics().engine.streams) <= 2


# -- what is in a batch --------------------------------------------------------------------------


def test_metadata_modes_fill_what_they_say(mixture, loaders):
    none = next(loaders(mixture, metadata="none"))
    assert none.dataset is None
    assert none.language is None
    dataset = next(loaders(mixture, metadata="dataset"))
    assert dataset.dataset is not None
    assert dataset.action is None
    full = next(loaders(mixture))
    np.testing.assert_array_equal(none.frames, full.frames)
    np.testing.assert_array_equal(dataset.dataset, full.dataset)
    assert full.where(0)["dataset"] in NAMES


@pytest.mark.parametrize(
    ("frames", "offsets"),
    [
        ("endpoints", (0, 4)),
        ("all", (0, 1, 2, 3, 4)),
        (WindowSpec("stride", stride=3), (0, 3, 4)),
        (WindowSpec("fixed_n", n=3), (0, 2, 4)),
    ],
)
def test_windows_hold_the_frames_asked_for(data, loaders, frames, offsets):
    mixture = make_mixture(data, ["bridge", "droid"], offset=4)
    batch = next(loaders(mixture, frames=frames, image_size=256))
    assert batch.frames.shape[1] == len(offsets)
    for row in range(len(batch)):
        steps = [read_tag(batch.frames[row, place]).step for place in range(len(offsets))]
        assert steps == [int(batch.frame_idx[row]) + offset for offset in offsets]


def test_offsets_in_seconds_use_the_control_frequency(data, loaders):
    mixture = make_mixture(data, ["bridge", "droid"], offset=None, offset_seconds=0.4)
    loader = loaders(mixture)  # bridge runs at 5 Hz, droid at 15
    assert {source.name: source.k for source in feed_of(loader).sources} == {
        "bridge": 2,
        "droid": 6,
    }


def test_action_chunks_are_padded_behind_the_end_of_the_episode(data, loaders):
    mixture = make_mixture(data, ["droid"])
    loader = loaders(mixture, action_chunk=6, batch_size=16)
    batch = next(loader)
    assert batch.action.shape == (16, 6, 7)
    (source,) = feed_of(loader).sources
    padded = 0
    for row, (_, episode_id, t) in enumerate(rows(batch)):
        episode = source.catalog.first_rows[episode_id >> 32] + (episode_id & 0xFFFFFFFF)
        actions = source.catalog.read(episode, "action", t, t + 6)
        count = len(actions)
        np.testing.assert_allclose(batch.action[row, :count], actions, rtol=1e-6)
        assert batch.action_is_pad[row].tolist() == [i >= count for i in range(6)]
        assert not batch.action[row, count:].any()
        padded += count < 6
    assert padded


def test_samples_per_episode_sees_other_frames_in_every_pass(data, loaders):
    mixture = make_mixture(data, ["droid"], samples_per_episode=1, split="train")
    loader = loaders(mixture, batch_size=4)
    passes = [rows(next(loader)) for _ in range(12)]
    for samples in passes:
        assert len({episode for _, episode, _ in samples}) == 4
    assert len({t for samples in passes for _, _, t in samples}) > 2


def test_one_tiny_source_among_large_ones_is_served_its_share(data, loaders):
    mixture = hr.Mixture.from_dict(
        {
            "root": str(data),
            "defaults": {"offset": 2, "weight": 1.0},
            "sources": [{"name": "bridge", "split": "train[:1]"}, {"name": "droid"}],
        }
    )
    loader = loaders(mixture, batch_size=16)
    served = Counter(name for _ in range(20) for name, _, _ in rows(next(loader)))
    assert 100 < served["bridge"] < 220
