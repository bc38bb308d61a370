"""What an index costs and what it gives: `python benchmarks/index.py`, everything in one run.

Generates the 29 datasets of the reference mixture in a temporary folder, enlarges them by repeating
their records (so that shards have as many episodes as real ones), and prints frames a second (full
and with `--quick`, warm and cold), scaling over processes, peak memory, catalog size, time to open,
and the time of one random frame against TFDS reading its whole episode. Except where it says cold,
data are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.catalog.build import ScanJob, scan_shard
from headrace.catalog.shards import Quiet
from headrace.engine.machine import allowed_cpus
from headrace.formats.rlds import RldsDataset, read_dataset
from headrace.testing import synthesize
from reporting import data_folder, fresh_process, machine, say, spread

REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=8, help="episodes a dataset")
    parser.add_argument("--times", type=int, default=4, help="how often records are repeated")
    parser.add_argument("--scan", action="store_true", help="only frames a second of a scan")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    parser.add_argument("--keep", metavar="DIR", help="put the data here and keep them")
    args = parser.parse_args()
    with data_folder(args.keep) as root:
        figures = run(root, args.episodes, args.times, scan_only=args.scan)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def run(root: Path, episodes: int, times: int, *, scan_only: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {"machine": machine()}
    say("machine", figures["machine"])
    small, large = root / "small", root / "large"
    if not small.exists():
        synthesize(small, episodes=episodes)
    datasets = [enlarge(folder, large, times) for folder in hr.find_datasets(small)]

    figures["scan"] = scan_speed(datasets, root / "scan.arrow")
    if scan_only:
        return figures
    figures["processes"] = scaling(root, large / "droid" / "1.0.1")
    figures["memory"] = memory(small, large)
    figures["size"] = size(small, large)
    figures["open"] = opening(root, small)
    figures["frame"] = one_frame(large)
    return figures


def enlarge(folder: Path, to: Path, times: int, shards: int = 2) -> Path:
    """A copy of a dataset whose records are repeated `times` times, in `shards` shards a split."""
    target = to / folder.relative_to(folder.parents[1])
    if target.exists():
        return target
    target.mkdir(parents=True)
    dataset = read_dataset(folder)
    info = json.loads((folder / "dataset_info.json").read_text())
    for split in info["splits"]:
        files = [shard for shard in dataset.shards if shard.split == split["name"]]
        episodes = sum(shard.episodes for shard in files)
        split["shardLengths"] = [str(episodes * times)] * shards
        for number in range(shards):
            name = f"{dataset.name}-{split['name']}.tfrecord-{number:05d}-of-{shards:05d}"
            with (target / name).open("wb") as out:
                for _ in range(times):
                    for shard in files:
                        out.write((folder / shard.file).read_bytes())
    (target / "dataset_info.json").write_text(json.dumps(info))
    shutil.copy(folder / "features.json", target)
    return target


def widen(folder: Path, to: Path, shards: int) -> Path:
    """A dataset of many shards, all of them links to one."""
    target = to / folder.relative_to(folder.parents[1])
    if target.exists():
        return target
    target.mkdir(parents=True)
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"] = [split for split in info["splits"] if split["name"] == "train"]
    (split,) = info["splits"]
    source = folder / read_dataset(folder).shards[-1].file
    split["shardLengths"] = [split["shardLengths"][-1]] * shards
    for number in range(shards):
        name = f"{info['name']}-train.tfrecord-{number:05d}-of-{shards:05d}"
        (target / name).hardlink_to(source)
    (target / "dataset_info.json").write_text(json.dumps(info))
    shutil.copy(folder / "features.json", target)
    return target


def scan_speed(folders: list[Path], out: Path) -> dict[str, Any]:
    """Frames and megabytes a second of one core, over all datasets and shards.

    In turns: with `--quick` and without, from the page cache and from the disk. What counts warm is
    CPU time, what counts cold is the clock.
    """
    datasets = [read_dataset(folder) for folder in folders]
    size = sum((d.path / shard.file).stat().st_size for d in datasets for shard in d.shards)
    for dataset in datasets:
        assert dataset.schema
    scan_all(datasets, out, checksums=True)  # the files are in the page cache from here on
    seconds: dict[str, list[float]] = {}
    for _ in range(REPEATS):
        for cold in (False, True):
            for checksums in (False, True):
                if cold:
                    drop_pages(datasets)
                clock = time.perf_counter if cold else time.process_time
                started = clock()
                steps, frames = scan_all(datasets, out, checksums=checksums)
                name = f"{'full' if checksums else 'quick'}, {'cold' if cold else 'warm'}"
                seconds.setdefault(name, []).append(clock() - started)
    for name, samples in seconds.items():
        say(
            f"frames/s, one core, {name}",
            f"{spread([frames / each for each in samples])}, "
            f"{size / statistics.median(samples) / 1e6:,.0f} MB/s"
            + ("; target 200,000" if name == "quick, warm" else ""),
        )
    say("  over", f"{frames:,} frames, {steps:,} steps, {size / 1e9:.2f} GB of {len(datasets)}")
    return {"seconds": seconds, "frames": frames, "steps": steps, "bytes": size}


def scan_all(datasets: list[RldsDataset], out: Path, *, checksums: bool) -> tuple[int, int]:
    """Scan every shard in this process; steps and frames."""
    steps = frames = 0
    for dataset in datasets:
        for shard in dataset.shards:
            job = ScanJob(
                folder=str(dataset.path),
                file=shard.file,
                episodes=shard.episodes,
                level="frames",
                checksums=checksums,
                quarantine=False,
                out=str(out),
                stamp="",
            )
            result = scan_shard(job, dataset.schema, lambda *_: None, mapped=True)
            steps += result.steps
            frames += result.steps * len(dataset.schema.cameras)
    return steps, frames


def drop_pages(datasets: list[RldsDataset]) -> None:
    """Forget the shards' pages in the page cache."""
    for dataset in datasets:
        for shard in dataset.shards:
            fd = os.open(dataset.path / shard.file, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def forget(root: Path) -> None:
    """Remove all catalogs below a folder."""
    for folder in hr.find_datasets(root):
        shutil.rmtree(folder / ".headrace", ignore_errors=True)


def scaling(root: Path, folder: Path) -> dict[str, Any]:
    """Whole builds (start processes, scan, merge, sync) of one dataset of many shards."""
    wide = widen(folder, root / "wide", 256)
    rates: dict[int, list[float]] = {}
    counts = sorted({1, 2, 4, 8, allowed_cpus()} & set(range(1, allowed_cpus() + 1)))
    for _ in range(REPEATS):
        for workers in counts:
            shutil.rmtree(wide / ".headrace", ignore_errors=True)
            started = time.perf_counter()
            catalog = hr.Catalog.open(wide, workers=workers, progress=Quiet())
            seconds = time.perf_counter() - started
            frames = int(catalog.steps.sum()) * len(catalog.schema.cameras)
            rates.setdefault(workers, []).append(frames / seconds)
    one = statistics.median(rates[1])
    for workers, samples in rates.items():
        say(
            f"build with {workers} process{'es' if workers > 1 else ''}",
            f"{spread(samples)} frames/s, {statistics.median(samples) / one:.2f} x one",
        )
    return {str(workers): samples for workers, samples in rates.items()}


def memory(small: Path, large: Path) -> dict[str, Any]:
    """Peak resident memory of the largest process of `headrace index`, small data and large."""
    code = (
        "import json, resource, sys; from headrace.cli.main import main\n"
        "code = main(['index', sys.argv[1], '--json'])\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "peak = [int(status['VmHWM'].split()[0]) / 1024, workers / 1024]\n"
        "print(json.dumps(peak), file=sys.stderr); sys.exit(code)\n"
    )
    found = {}
    for name, root in (("small", small), ("large", large)):
        forget(root)
        out = subprocess.run(
            [sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=True
        )
        parent, child = json.loads(out.stderr.splitlines()[-1])
        data = sum(row["data_bytes"] for row in json.loads(out.stdout)["datasets"])
        found[name] = {"parent_mb": parent, "worker_mb": child, "data_mb": data / 1e6}
        say(
            f"peak memory, {data / 1e9:.1f} GB of data",
            f"{parent:.0f} MB parent, {child:.0f} MB largest worker; target 200, flat",
        )
    return found


def size(small: Path, large: Path) -> dict[str, Any]:
    """Bytes of catalog a frame and camera: of all, and what one more frame adds."""

    def total(root: Path) -> tuple[int, int]:
        catalogs = [hr.Catalog.open(folder) for folder in hr.find_datasets(root)]
        frames = sum(int(c.steps.sum()) * len(c.schema.cameras) for c in catalogs)
        return sum(c.nbytes for c in catalogs), frames

    (few_bytes, few), (many_bytes, many) = total(small), total(large)
    marginal = (many_bytes - few_bytes) / (many - few)
    say("catalog bytes a frame and camera", f"{marginal:.2f} each further frame; target 8, <= 10")
    say("  with all fixed parts", f"{many_bytes / many:.2f} over {many:,} frames")
    return {"marginal": marginal, "overall": many_bytes / many, "frames": many}


def opening(root: Path, small: Path) -> dict[str, Any]:
    """Opening all catalogs of a mixture, in a process that has not opened them before."""
    many = root / "many"
    if not many.exists():
        for copy in range(10):
            for folder in hr.find_datasets(small):
                target = many / str(copy) / folder.relative_to(small)
                shutil.copytree(
                    folder,
                    target,
                    copy_function=os.link,
                    ignore=shutil.ignore_patterns(".headrace"),
                )
    folders = [str(folder) for folder in hr.find_datasets(many)]
    for folder in folders:
        hr.Catalog.open(folder)
    code = (
        "import json, sys, time; import headrace as hr\n"
        "folders = json.load(sys.stdin); started = time.perf_counter()\n"
        "catalogs = [hr.Catalog.open(folder) for folder in folders]\n"
        "opened = time.perf_counter()\n"
        "steps = sum(int(c.steps.sum()) for c in catalogs)\n"
        "print(json.dumps([opened - started, time.perf_counter() - started, steps]))\n"
    )
    found: dict[str, Any] = {}
    for count, target in ((29, 50), (290, 300)):
        samples = []
        for _ in range(REPEATS):
            found_s = fresh_process(code, stdin=json.dumps(folders[:count]))
            samples.append([1000 * seconds for seconds in found_s[:2]])
        opened = [sample[0] for sample in samples]
        used = statistics.median(sample[1] for sample in samples)
        say(
            f"open {count} catalogs",
            f"{spread(opened)} ms, {used:.0f} ms with the lengths "
            f"of all episodes; target {target} ms",
        )
        found[str(count)] = {"open_ms": opened, "open_and_steps_ms": used}
    return found


def timed(call: Callable[[int, int], object], draws: list[tuple[int, int]]) -> list[float]:
    """Milliseconds of each call."""
    samples = []
    for episode, t in draws:
        started = time.perf_counter()
        call(episode, t)
        samples.append(1000 * (time.perf_counter() - started))
    return samples


def one_frame(large: Path) -> dict[str, Any]:
    """One random frame by its byte range, against TFDS reading the episode it is in."""
    folder = large / "bridge" / "0.1.0"
    catalog = hr.Catalog.open(folder)
    numbers = catalog.episodes("train").tolist()
    rng = random.Random(0)
    draws = [(e, rng.randrange(int(catalog.steps[e]))) for e in rng.choices(numbers, k=300)]
    ours = timed(lambda e, t: catalog.encoded(e, t), draws)
    decoded = timed(lambda e, t: catalog.frame(e, t), draws)
    say("one random frame, encoded", f"{statistics.median(ours) * 1000:.0f} us")
    say("one random frame, decoded 480x640", f"{statistics.median(decoded):.2f} ms")
    figures: dict[str, Any] = {
        "encoded_ms": statistics.median(ours),
        "decoded_ms": statistics.median(decoded),
    }
    try:
        figures["tfds"] = tfds_episode(folder, draws, numbers)
    except ImportError as error:
        say("TFDS", f"not compared: {error} (pip install 'headrace[tf]')")
        return figures
    for name, ms in figures["tfds"].items():
        ratio = ms / figures["decoded_ms"]
        say(f"TFDS, {name}", f"{ms:.1f} ms: {ratio:,.0f} x one frame of ours, decoded")
    return figures


def tfds_episode(
    folder: Path, draws: list[tuple[int, int]], numbers: list[int]
) -> dict[str, float]:
    """TFDS on the same episodes: as a stream at its best, and one episode at random."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow_datasets as tfds

    skip = {"steps": {"observation": {"image": tfds.decode.SkipDecoding()}}}
    builder = tfds.builder_from_directory(str(folder))
    stream = iter(builder.as_dataset(split="train", decoders=skip))
    next(stream)
    started = time.perf_counter()
    count = 0
    for episode in stream:
        for step in episode["steps"].batch(10_000):
            count += len(step["observation"]["image"])
    streamed = 1000 * (time.perf_counter() - started) / (len(numbers) - 1)

    first = numbers[0]

    def at_random(episode: int, t: int) -> None:
        place = episode - first
        split = f"train[{place}:{place + 1}]"
        for one in builder.as_dataset(split=split, decoders=skip):
            for step in one["steps"].skip(t).take(1):
                tfds.as_numpy(step["observation"]["image"])

    return {
        "an episode in its stream": streamed,
        "a frame of a random episode": statistics.median(timed(at_random, draws[:15])),
    }


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    main()
