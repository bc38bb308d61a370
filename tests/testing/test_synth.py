"""Writing presets: the same bytes every time, nothing half done, clear errors."""

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headrace.errors import DatasetError, HeadraceError, UnknownDatasetError, UsageError
from headrace.testing import synth, synthesize
from headrace.testing.writer import write_shard

FEW = ["bridge", "uiuc_d3field", "droid", "vima"]


def contents(root):
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def children_of(pid):
    return map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


@pytest.fixture
def long_run(tmp_path):
    """A run that writes for minutes, with its two workers; all of them are gone afterwards."""
    workers = []
    with subprocess.Popen(
        [sys.executable, "-c", LONG_RUN, tmp_path / "out"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            workers += [os.pidfd_open(child) for child in children_of(process.pid)]
            yield process, workers
        finally:
            process.kill()
    for worker in workers:
        if not select.select([worker], [], [], 0)[0]:
            signal.pidfd_send_signal(worker, signal.SIGKILL)
        os.close(worker)


def wait_for(workers):
    """Wait until all these processes are gone; the time only guards against hanging."""
    for worker in workers:
        gone, _, _ = select.select([worker], [], [], 120)
        assert gone, "a worker outlived its parent"


LONG_RUN = """
import sys
from headrace.testing import synthesize

said = []

def report(done, total, name):
    if not said:
        said.append(True)
        print("ready", flush=True)

synthesize(sys.argv[1], episodes=500, workers=2, only=["bridge", "uiuc_d3field"], report=report)
"""


def test_one_worker_and_two_write_the_same_bytes_and_another_seed_others(tmp_path, monkeypatch):
    monkeypatch.setattr(synth, "_FEW_FRAMES", 0)
    for name, workers, seed in (("one", 1, 0), ("two", 2, 0), ("other", 1, 1)):
        synthesize(tmp_path / name, "oxe29", 3, seed, FEW, workers, _max_steps=3)
    one, two, other = (contents(tmp_path / name) for name in ("one", "two", "other"))
    assert one == two
    assert one.keys() == other.keys()
    records = [path for path in one if "tfrecord" in path]
    assert len(records) > 8
    assert all(one[path] != other[path] for path in records)


def test_it_says_what_was_written_and_how_far_it_is(tmp_path):
    calls = []
    made = synthesize(
        tmp_path, only=["jaco_play", "rt1"], episodes=3, report=lambda *a: calls.append(a),
        _max_steps=2,
    )  # fmt: skip
    rt1, jaco = made
    assert (rt1.name, rt1.episodes, rt1.steps, rt1.frames) == ("rt1", 3, 6, 6)
    assert (jaco.name, jaco.episodes, jaco.steps, jaco.frames) == ("jaco_play", 4, 8, 16)
    assert rt1.path == tmp_path / "fractal20220817_data" / "0.1.0"
    assert rt1.bytes == sum(file.stat().st_size for file in rt1.path.iterdir())
    assert calls[-1][:2] == (22, 22)
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)
    assert {name for _, _, name in calls} == {"rt1", "jaco_play"}


def test_shards_and_splits_are_as_published(tmp_path):
    (bridge,) = synthesize(tmp_path, only=["bridge"], episodes=5, _max_steps=1)
    info = json.loads((bridge.path / "dataset_info.json").read_text())
    lengths = {split["name"]: split["shardLengths"] for split in info["splits"]}
    assert lengths == {"train": ["2", "1", "2"], "test": ["1"]}
    assert sorted(path.name for path in bridge.path.glob("*train*")) == [
        f"bridge-train.tfrecord-{i:05d}-of-00003" for i in range(3)
    ]


def test_it_works_from_a_thread_of_a_script_without_a_main_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import threading
        from headrace.testing import synth, synthesize
        synth._FEW_FRAMES = 0
        run = lambda: synthesize({str(tmp_path / "out")!r}, only=["bc_z", "kuka"], episodes=2,
                                 workers=2, _max_steps=2)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        print("once")
        """)
    )
    out = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert (out.stdout, out.stderr) == ("once\n", "")
    assert (tmp_path / "out" / "bc_z" / "0.1.0" / "dataset_info.json").exists()
    assert (tmp_path / "out" / "kuka" / "0.1.0" / "dataset_info.json").exists()


def test_ctrl_c_ends_the_workers_and_leaves_nothing(long_run, tmp_path):
    process, workers = long_run
    assert len(workers) == 2
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == -signal.SIGINT
    wait_for(workers)
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_a_killed_run_leaves_no_dataset_and_the_next_one_removes_the_rest(long_run, tmp_path):
    root = tmp_path / "out"
    process, workers = long_run
    process.kill()
    process.wait(120)
    wait_for(workers)
    assert not list(root.rglob("dataset_info.json"))
    assert list(root.glob("bridge/.*incomplete*"))
    synthesize(root, only=["bridge"], episodes=1, _max_steps=1)
    assert [path.name for path in (root / "bridge").iterdir()] == ["0.1.0"]


def test_a_worker_that_dies_is_an_error_and_not_a_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(synth, "_FEW_FRAMES", 0)

    def report(*_):
        for child in children_of(os.getpid()):
            if "headrace.jobs" in Path(f"/proc/{child}/cmdline").read_text():
                os.kill(child, signal.SIGKILL)

    with pytest.raises(HeadraceError, match="signal 9"):
        synthesize(tmp_path, only=["bridge"], episodes=40, workers=2, report=report)
    assert not list(tmp_path.rglob("*.tfrecord*"))


def test_a_synthesized_dataset_is_replaced(tmp_path):
    synthesize(tmp_path, only=["kuka"], episodes=2, _max_steps=1)
    first = contents(tmp_path)
    synthesize(tmp_path, only=["kuka"], episodes=1, seed=1, _max_steps=1)
    second = contents(tmp_path)
    assert first.keys() != second.keys()
    synthesize(tmp_path, only=["kuka"], episodes=2, _max_steps=1)
    assert contents(tmp_path) == first


@pytest.mark.parametrize("info", [None, "{", "[]", '{"moduleName": "kuka"}'])
def test_any_other_folder_in_the_way_is_left_alone(tmp_path, info):
    target = tmp_path / "kuka" / "0.1.0"
    target.mkdir(parents=True)
    (target / "precious").write_text("data")
    if info is not None:
        (target / "dataset_info.json").write_text(info)
    with pytest.raises(DatasetError, match=r"kuka/0\.1\.0"):
        synthesize(tmp_path, only=["bridge", "kuka"], episodes=1, _max_steps=1)
    assert (target / "precious").read_text() == "data"
    assert not (tmp_path / "bridge").exists()


def test_a_full_disk_ends_with_a_clear_error_and_no_half_dataset(tmp_path, monkeypatch):
    def on_a_full_disk(path, *args):
        if "bridge" in path.name and "00002" in path.name:
            path.symlink_to("/dev/full")
        return write_shard(path, *args)

    monkeypatch.setattr(synth, "write_shard", on_a_full_disk)
    with pytest.raises(DatasetError, match="full"):
        synthesize(tmp_path, only=["bridge"], episodes=4, workers=1, _max_steps=1)
    assert list(tmp_path.rglob("*")) == []


def test_an_unknown_preset_names_the_nearest(tmp_path):
    with pytest.raises(UsageError, match=r"'oxe'.*oxe29, plain, odd"):
        synthesize(tmp_path, preset="oxe")


def test_an_unknown_dataset_names_the_nearest(tmp_path):
    with pytest.raises(UnknownDatasetError, match=r"'brigde'.*'bridge'"):
        synthesize(tmp_path, only=["brigde"])
    with pytest.raises(UnknownDatasetError, match="'odd_ragged'"):
        synthesize(tmp_path, preset="odd", only=["odd_raged"])


@pytest.mark.parametrize("wrong", [{"episodes": 0}, {"workers": 0}, {"only": []}])
def test_numbers_that_make_no_sense_are_refused(tmp_path, wrong):
    with pytest.raises(UsageError):
        synthesize(tmp_path, **wrong)
    assert list(tmp_path.iterdir()) == []
