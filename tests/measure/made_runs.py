"""Run folders made up by a rule: for the tests of the reports and for the picture in the docs."""

import json

import numpy as np

from headrace.config.mixture import Mixture

STAGES = {
    "read": {"busy_s": 2.1, "waiting_s": 17.6},
    "decode": {"busy_s": 37.9, "waiting_s": 0.8},
    "deliver": {"busy_s": 0.6, "waiting_s": 19.2},
}


def oxe29_names():
    return [source.name for source in Mixture.load("oxe29", ["root=."]).sources]


def batch_record(idx, t_s, dt_s, counts, warmup=False):
    return {
        "idx": idx,
        "t_s": t_s,
        "dt_s": dt_s,
        "fetch_dt_s": dt_s * 0.7,
        "materialize_dt_s": dt_s * 0.3,
        "is_warmup": warmup,
        "dominant_dataset": max(counts, key=counts.get) if counts else None,
        "dataset_counts": counts,
        "dominant_gap_batches": 1,
    }


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_made_run(
    folder,
    names=("bridge", "rt1", "droid"),
    *,
    rate=1290.0,
    limit=1400.0,
    batches=400,
    warmup=20,
    batch_size=64,
    backend="headrace",
    name=None,
    seed=0,
    first_s=0.14,
    stalls=0.0,
    memory_mb=250.0,
    growth_mb=0.0,
    budget_mb=249.0,
    sticky=0.0,
    stages=True,
    weights=None,
    **result,
):
    """A complete run; `stalls` is how often a batch takes 10 times as long, `sticky` how much a
    batch resembles the one before it (a shuffle that does not reach far)."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    weights = np.ones(len(names)) if weights is None else np.asarray(weights, float)
    weights = weights / weights.sum()
    times = rng.gamma(60, batch_size / rate / 60, batches)
    times[rng.random(batches) < stalls] *= 10
    times[0] = first_s
    clock = np.cumsum(times)
    records, local = [], weights
    for idx in range(batches):
        if sticky:
            local = sticky * local + (1 - sticky) * rng.dirichlet(weights * len(names) * 0.5)
        drawn = rng.multinomial(batch_size, local / local.sum())
        counts = {n: int(c) for n, c in zip(names, drawn, strict=True) if c}
        record = batch_record(idx, float(clock[idx]), float(times[idx]), counts, idx < warmup)
        records.append(record)
    write_lines(folder / "batch_times.jsonl", records)
    seconds = np.arange(0, clock[-1], 0.5)
    ramp = 1 - np.exp(-seconds / 2)
    anon = 90 + (memory_mb - 90) * ramp + growth_mb * seconds / max(clock[-1], 1)
    anon += rng.normal(0, memory_mb * 0.01, len(seconds))
    keys = ("t_s", "rss_mb", "anon_mb", "available_mb")
    columns = (seconds, anon + 160, anon, 20_000 - anon)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    write_lines(folder / "memory.jsonl", [dict(zip(keys, row, strict=True)) for row in rows])
    measured = times[warmup:]
    served = np.zeros(len(names))
    for record in records[warmup:]:
        served += [record["dataset_counts"].get(n, 0) for n in names]
    served = served / max(served.sum(), 1)
    speed = batch_size * len(measured) / measured.sum() if len(measured) else None
    known = {
        "name": name or folder.name,
        "backend": backend,
        "status": "complete",
        "cause": None,
        "samples_per_s": speed,
        "batches_per_s": speed and speed / batch_size,
        "mean_s": float(measured.mean()) if len(measured) else None,
        "first_batch_s": first_s,
        "setup_s": 0.4,
        "stall_s_per_step": float(measured.mean()) * 0.9 if len(measured) else None,
        "peak_rss_mb": float(anon.max() + 160) if len(anon) else None,
        "peak_anon_mb": float(anon.max()) if len(anon) else None,
        "budget_mb": budget_mb,
        "decode_limit_samples_per_s": limit,
        "limit_ratio": limit and speed and speed / limit,
        "bytes_read_per_sample": 61_234.5,
        "cpu_s_per_sample": 0.00152,
        "mixture": {
            n: {"asked": float(w), "served": float(s)}
            for n, w, s in zip(names, weights, served, strict=True)
        },
        "stages": STAGES if stages is True else stages or None,
        "shuffle": "global" if stages else "buffer of 1,000 samples",
        "config": {"loader": {"batch_size": batch_size, "image_size": 256}},
        "machine": {"cpu": "AMD EPYC 9654", "cores": 2, "memory_gb": 24.0},
        **result,
    }
    (folder / "result.json").write_text(json.dumps(known))
    (folder / "config.yaml").write_text(f"loader:\n  batch_size: {batch_size}\n")
    (folder / "log.txt").write_text("begun\nfinished\n")
    return folder


def write_made_comparison(folder, repeats=2):
    """headrace and two rivals on the 29 datasets, as `headrace bench --against` leaves them."""
    names = oxe29_names()
    kinds = {
        "headrace": {"rate": 1290, "memory_mb": 245},
        "tf.data": {
            "rate": 610,
            "first_s": 6.2,
            "stalls": 0.02,
            "memory_mb": 2900,
            "growth_mb": 900,
            "sticky": 0.8,
            "stages": False,
            "budget_mb": None,
        },
        "torch": {
            "rate": 880,
            "first_s": 2.1,
            "stalls": 0.004,
            "memory_mb": 1300,
            "sticky": 0.3,
            "stages": False,
            "budget_mb": None,
        },
    }
    comparison = {}
    for backend, settings in kinds.items():
        speeds = []
        for number in range(1, repeats + 1):
            run = folder / f"{backend}_{number}"
            write_made_run(run, names, backend=backend, name="oxe29", seed=number, **settings)
            speeds.append(json.loads((run / "result.json").read_text())["samples_per_s"])
        comparison[backend] = {
            "samples_per_s": {
                "median": float(np.median(speeds)),
                "min": min(speeds),
                "max": max(speeds),
                "runs": speeds,
            }
        }
    (folder / "result.json").write_text(json.dumps({"comparison": comparison}))
    return folder
