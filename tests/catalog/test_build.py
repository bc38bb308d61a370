"""Building: continues, repairs, shares, and never leaves half a catalog."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import headrace as hr
from headrace import errors, jobs
from headrace.catalog.check import quarantine, verify
from headrace.catalog.manifest import FORMAT_VERSION, Damage, read_manifest, write_manifest
from headrace.catalog.shards import Quiet, ShardPool
from headrace.catalog.table import EpisodeTable
from headrace.testing import features as f
from headrace.testing import read_tag, write_dataset
from tests.catalog.test_bad_input import records, rewrite, shards


def opened(folder, **options):
    """A catalog, and the progress of building it."""
    progress = Quiet()
    return hr.Catalog.open(folder, progress=progress, **options), progress


def content(catalog):
    """Which episode and step every main frame says that it shows."""
    return [
        (tag.episode, tag.step)
        for episode in range(len(catalog))
        for tag in (read_tag(catalog.frame(episode, t)) for t in range(int(catalog.steps[episode])))
    ]


def tidy(folder):
    """Names in the catalog's folder once it is built: the lock, the manifest and one table."""
    names = sorted(path.name for path in (folder / ".headrace").iterdir())
    assert len(names) == 3, names
    assert names[0].startswith("episodes-")
    assert names[1:] == ["lock", "manifest.json"]


def run(code, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )


def test_every_frame_is_reached_by_its_byte_range(bridge):
    catalog, _ = opened(bridge)
    info = json.loads((bridge / "dataset_info.json").read_text())
    assert len(catalog) == sum(int(n) for s in info["splits"] for n in s["shardLengths"])
    seen = content(catalog)
    assert len(seen) == len(set(seen)) == catalog.steps.sum()
    for episode in {shown for shown, _ in seen}:
        steps = [step for shown, step in seen if shown == episode]
        assert steps == list(range(len(steps)))
    tidy(bridge)


def test_a_second_open_builds_nothing(bridge):
    first, _ = opened(bridge)
    again, progress = opened(bridge)
    assert progress.bytes == 0
    assert again.manifest == first.manifest


def test_a_changed_shard_is_named_and_only_that_one_is_indexed_again(bridge):
    catalog, _ = opened(bridge)
    before = content(catalog)
    changed = shards(bridge)[1]
    os.utime(changed, ns=(1, 1))
    catalog, progress = opened(bridge)
    assert progress.bytes == changed.stat().st_size
    assert any(changed.name in note for note in progress.notes)
    assert content(catalog) == before
    tidy(bridge)


def test_new_metadata_means_a_new_catalog(bridge):
    opened(bridge)
    info = json.loads((bridge / "dataset_info.json").read_text())
    (bridge / "dataset_info.json").write_text(json.dumps(info | {"description": "new"}))
    _, progress = opened(bridge)
    assert progress.bytes == sum(path.stat().st_size for path in shards(bridge))


def outdated(folder):
    """Turn a catalog into one of format 1, which has no checksums."""
    catalog = hr.Catalog.open(folder, quick=True)
    values = json.loads((catalog.folder / "manifest.json").read_text())
    del values["checksums"]
    (catalog.folder / "manifest.json").write_text(json.dumps(values | {"format_version": 1}))


def test_a_catalog_of_another_format_version_is_built_again_once_with_a_message(bridge):
    outdated(bridge)
    catalog, progress = opened(bridge)
    assert progress.bytes == sum(path.stat().st_size for path in shards(bridge))
    assert ["format 1" in note for note in progress.notes] == [True]
    assert catalog.manifest.format_version == FORMAT_VERSION
    assert catalog.checksums
    tidy(bridge)
    _, progress = opened(bridge)
    assert (progress.bytes, progress.notes) == (0, [])


def test_what_an_older_catalog_leaves_out_stays_left_out(bridge):
    flip(shards(bridge)[0], records(shards(bridge)[0])[0][0] + 2000)
    shards(bridge)[-1].unlink()
    catalog, _ = opened(bridge, quick=True, on_damage="quarantine")
    before = catalog.quarantined
    quarantine(verify(bridge))
    outdated(bridge)
    catalog, _ = opened(bridge)
    assert catalog.checksums
    assert before < catalog.quarantined == hr.Catalog.open(bridge).quarantined
    assert len(catalog.quarantined) == len(before) + 1


def test_damage_beside_what_an_older_catalog_leaves_out_is_told(tmp_path):
    folder = tmp_path / "own" / "1.0.0"
    features = f.FeaturesDict({"steps": f.Steps(f.FeaturesDict({"n": f.Scalar("float32")}))})
    episode = {"steps": {"n": np.zeros(9, np.float32)}}
    write_dataset(folder, features, {"train": [[episode, episode]]})
    (shard,) = shards(folder)
    catalog, _ = opened(folder, quick=True)
    write_manifest(
        catalog.folder, catalog.manifest.with_quarantine([Damage(shard.name, 0, 0, "was damaged")])
    )
    outdated(folder)
    stat = shard.stat()
    flip(shard, sum(records(shard)[1]) - 9)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    catalog, progress = opened(folder)
    assert [shard.name in note for note in progress.notes] == [False, True]
    assert {(each.file, each.record) for each in catalog.manifest.quarantine} == {
        (shard.name, 0),
        (shard.name, 1),
    }


# -- with and without checksums ------------------------------------------------------------------


def flip(path, offset):
    rewrite(path, lambda data: data.__setitem__(offset, data[offset] ^ 4))


def test_a_flipped_bit_in_an_image_is_found_while_indexing(bridge):
    shard = shards(bridge)[1]
    (offset, length), *_ = records(shard)
    flip(shard, offset + length // 2)
    with pytest.raises(errors.RecordError) as caught:
        opened(bridge)
    error = caught.value
    assert (error.dataset, error.file, error.offset) == ("bridge 0.1.0", str(shard), offset)
    assert error.episode == 0
    assert "--quarantine" in error.remedy
    catalog, _ = opened(bridge, on_damage="quarantine")
    (damage,) = catalog.manifest.quarantine
    assert (damage.file, damage.record, damage.offset) == (shard.name, 0, offset)


def test_a_quick_catalog_stays_quick_until_checksums_are_asked_for(bridge):
    catalog, _ = opened(bridge, quick=True)
    assert not catalog.checksums
    assert "quick" in repr(catalog)
    before = content(catalog)
    for options in ({}, {"quick": True}):
        catalog, progress = opened(bridge, **options)
        assert (catalog.checksums, progress.bytes) == (False, 0)
    os.utime(shards(bridge)[1], ns=(1, 1))
    catalog, progress = opened(bridge)
    assert not catalog.checksums
    assert progress.bytes == shards(bridge)[1].stat().st_size
    catalog, progress = opened(bridge, quick=False)
    assert catalog.checksums
    assert "quick" not in repr(catalog)
    assert len(progress.notes) == 1
    assert content(catalog) == before
    catalog, progress = opened(bridge, quick=True)
    assert (catalog.checksums, progress.bytes) == (True, 0)
    tidy(bridge)


def test_the_first_catalog_has_checksums_and_they_cost_four_bytes_a_frame(bridge):
    quick, _ = opened(bridge, quick=True, cache=True)
    without = sum(batch.nbytes for batch in table_of(quick).batches)
    shutil.rmtree(os.environ["HEADRACE_CACHE"])
    catalog, _ = opened(bridge)
    assert catalog.checksums
    full = sum(batch.nbytes for batch in table_of(catalog).batches)
    frames = int(catalog.steps.sum()) * len(catalog.schema.cameras)
    assert 4 * frames <= full - without < 4 * (frames + 64)


def table_of(catalog):
    return EpisodeTable(catalog.folder / catalog.manifest.table)


@pytest.mark.parametrize("spoil", ["garbage", "empty", "gone", "cut"])
@pytest.mark.parametrize("name", ["manifest.json", "episodes-*.arrow"])
def test_a_damaged_catalog_is_built_again(bridge, name, spoil):
    first, _ = opened(bridge)
    before = content(first)
    (path,) = (bridge / ".headrace").glob(name)
    data = path.read_bytes()
    path.unlink()
    if spoil != "gone":
        path.write_bytes(
            {"garbage": b"x" * 999, "empty": b"", "cut": data[: len(data) // 2]}[spoil]
        )
    catalog, _ = opened(bridge)
    assert content(catalog) == before
    tidy(bridge)


def test_a_catalog_of_episodes_knows_where_records_lie_and_nothing_more(bridge):
    catalog, _ = opened(bridge, level="episodes")
    assert catalog.info(0).length > 0
    assert catalog.info(0).steps is None
    assert len(catalog.episodes("train")) == 3
    with pytest.raises(errors.CatalogError, match="frames"):
        catalog.frame(0, 0)
    with pytest.raises(errors.CatalogError, match="frames"):
        catalog.read(0, "observation/state")
    frames, progress = opened(bridge)
    assert progress.bytes > 0
    assert frames.info(0).offset == catalog.info(0).offset
    again, progress = opened(bridge, level="episodes")
    assert (again.level, progress.bytes) == ("frames", 0)


# -- interrupted ---------------------------------------------------------------------------------

DIE = """
import os, signal, sys
import headrace as hr
import headrace.catalog.build as build
from pathlib import Path
folder, point = sys.argv[1:]
def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
if point == "before the second part":
    write, calls = build.write_table, []
    build.write_table = lambda *a, **k: (
        calls.append(1), die() if len(calls) == 2 else write(*a, **k))
elif point == "inside the second part":
    write, calls = build.write_table, []
    def torn(path, schema, batches, **k):
        calls.append(1)
        def cut():
            for batch in batches:
                yield batch
                die()
        write(path, schema, cut() if len(calls) == 2 else batches, **k)
    build.write_table = torn
elif point == "before the table":
    build._Build._commit = die
elif point == "before the manifest":
    build.write_manifest = die
elif point == "inside the manifest":
    import headrace.catalog.manifest as manifest
    write = manifest.atomic_write
    def torn(*args, **kwargs):
        os.fsync = die
        write(*args, **kwargs)
    manifest.atomic_write = torn
elif point == "before tidying up":
    build.shutil.rmtree = die
hr.Catalog.open(folder)
"""
POINTS = [
    "before the second part",
    "inside the second part",
    "before the table",
    "before the manifest",
    "inside the manifest",
    "before tidying up",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_leaves_no_broken_catalog_and_the_next_build_resumes(bridge, point):
    reference, _ = opened(bridge, cache=True)
    expected = content(reference)
    shutil.rmtree(os.environ["HEADRACE_CACHE"])

    died = run(DIE, bridge, point)
    assert died.returncode == -signal.SIGKILL, died.stderr

    if point != "before tidying up":
        assert read_manifest(bridge / ".headrace") is None
    catalog, progress = opened(bridge)
    assert content(catalog) == expected
    total = sum(path.stat().st_size for path in shards(bridge))
    if "second part" in point:
        assert 0 < progress.bytes < total, "the first part was not kept"
    else:
        assert progress.bytes == 0, "finished parts were not kept"
    opened(bridge)
    if point != "before tidying up":
        tidy(bridge)


def test_a_build_that_cannot_write_says_so_and_leaves_nothing_broken(bridge):
    code = """
import resource, signal, sys
import headrace as hr
from headrace import errors
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # every file may have 3,000 bytes
try:
    hr.Catalog.open(sys.argv[1])
except errors.CatalogError as error:
    print(error)
"""
    out = run(code, bridge)
    assert "cannot be written" in out.stdout, out.stderr
    assert "HEADRACE_CACHE" in out.stdout
    assert read_manifest(bridge / ".headrace") is None
    assert not list((bridge / ".headrace").rglob("*.tmp-*"))
    opened(bridge)
    tidy(bridge)


def test_ctrl_c_during_a_build_keeps_what_was_finished(bridge):
    class Interrupts(Quiet):
        def advance(self, done_bytes, steps):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hr.Catalog.open(bridge, progress=Interrupts())
    assert read_manifest(bridge / ".headrace") is None
    catalog, _ = opened(bridge)
    assert len(catalog.episodes("train")) == 3
    tidy(bridge)


# -- several processes ---------------------------------------------------------------------------


def test_several_processes_that_build_the_same_catalog_all_read_right_frames(bridge):
    code = """
import sys
import headrace as hr
from headrace.testing import read_tag
catalog = hr.Catalog.open(sys.argv[1])
print([read_tag(catalog.frame(e, t)).step for e in range(len(catalog))
       for t in range(int(catalog.steps[e]))])
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(bridge)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    outputs = {process.communicate(timeout=300)[0] for process in processes}
    assert [process.returncode for process in processes] == [0] * 4
    assert len(outputs) == 1
    tidy(bridge)


def test_a_builder_waits_for_another_and_then_has_nothing_to_do(bridge):
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, headrace as hr\n"
            "from headrace.catalog.shards import Quiet\n"
            "from headrace.catalog import build as b\n"
            "inner = b._Build.run\n"
            "def run(self, pool, progress):\n"
            "    print('locked', flush=True); sys.stdin.readline(); inner(self, pool, progress)\n"
            "b._Build.run = run\n"
            "hr.Catalog.open(sys.argv[1], progress=Quiet())\n",
            str(bridge),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "locked\n"

    class LetsGo(Quiet):
        def note(self, text):
            super().note(text)
            holder.stdin.write("go\n")
            holder.stdin.flush()

    progress = LetsGo()
    hr.Catalog.open(bridge, progress=progress)
    holder.communicate(timeout=300)
    assert holder.returncode == 0
    assert ["waiting" in note for note in progress.notes] == [True]
    assert progress.bytes == 0
    tidy(bridge)


def test_a_reader_keeps_its_frames_while_the_catalog_is_replaced(bridge):
    reader, _ = opened(bridge)
    before = content(reader)
    os.utime(shards(bridge)[0], ns=(1, 1))
    opened(bridge)
    # The table that the reader has mapped is gone from the folder, not from its memory.
    assert not (bridge / ".headrace" / reader.manifest.table).exists()
    reader_steps = reader.steps.tolist()
    assert sum(reader_steps) == len(before)


# -- processes -----------------------------------------------------------------------------------


def test_worker_processes_give_the_same_catalog_as_one_process(bridge, monkeypatch):
    alone, _ = opened(bridge, cache=True)
    one = EpisodeTable(alone.folder / alone.manifest.table)
    shutil.rmtree(os.environ["HEADRACE_CACHE"])
    monkeypatch.setattr("headrace.catalog.shards.IN_PROCESS_BYTES", 0)
    catalog, progress = opened(bridge, workers=2)
    assert progress.steps == catalog.steps.sum()
    two = EpisodeTable(catalog.folder / catalog.manifest.table)
    assert [a.equals(b) for a, b in zip(one.batches, two.batches, strict=True)] == [True]


def test_an_error_in_a_worker_process_arrives_whole(bridge, monkeypatch):
    monkeypatch.setattr("headrace.catalog.shards.IN_PROCESS_BYTES", 0)
    os.truncate(shards(bridge)[0], 1000)
    with pytest.raises(errors.RecordError) as caught:
        hr.Catalog.open(bridge)
    assert caught.value.file == str(shards(bridge)[0])
    assert caught.value.dataset == "bridge 0.1.0"


def test_a_worker_that_is_killed_is_an_error_and_not_a_hang(bridge, monkeypatch):
    monkeypatch.setattr("headrace.catalog.shards.IN_PROCESS_BYTES", 0)
    pool, start = ShardPool(1), jobs._Worker.start

    def doomed(module):
        worker = start(module)
        worker.process.kill()
        return worker

    monkeypatch.setattr(jobs._Worker, "start", doomed)
    with pytest.raises(errors.CatalogError, match="signal 9"):
        hr.Catalog.open(bridge, pool=pool, progress=Quiet())
    assert "0/1" in repr(pool)


def test_memory_stays_flat_while_a_large_shard_is_scanned(bridge):
    """A shard of 300 MB is scanned in little more memory than one of 3 MB."""
    code = """
import json, resource, sys
from pathlib import Path
from headrace.catalog.build import ScanJob, scan_shard
from headrace.formats.features import read_features
folder, file, episodes = sys.argv[1], sys.argv[2], int(sys.argv[3])
job = ScanJob(folder, file, episodes, "frames", True, False, folder + "/out.arrow", "s")
schema = read_features(Path(folder) / "features.json")
result = scan_shard(job, schema, lambda b, s: None, mapped=True)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps([result.steps, int(status["VmHWM"].split()[0]) / 1024]))
"""
    shard = shards(bridge)[0]
    once = shard.read_bytes()
    episodes = json.loads((bridge / "dataset_info.json").read_text())["splits"][0]["shardLengths"]
    times = 300_000_000 // len(once)
    big = bridge / "big"
    with big.open("wb") as file:
        for _ in range(times):
            file.write(once)
    small = json.loads(run(code, bridge, shard.name, int(episodes[0])).stdout)
    large = json.loads(run(code, bridge, "big", int(episodes[0]) * times).stdout)
    assert large[0] == small[0] * times
    assert large[1] - small[1] < 90, f"{small[1]:.0f} MB grew to {large[1]:.0f} MB"
    assert large[1] < 200


def test_building_again_and_again_leaves_no_file_open(bridge):
    for _ in range(20):
        shutil.rmtree(bridge / ".headrace", ignore_errors=True)
        opened(bridge)
    left = []
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            left.append(os.readlink(f"/proc/self/fd/{one}"))
    assert not [file for file in left if file.startswith(str(bridge / ".headrace"))]
