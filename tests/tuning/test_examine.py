"""The examination of any step over any batches."""

import json
import time

import numpy as np
import pytest

import headrace as hr
from headrace.cli.main import main
from headrace.errors import UsageError

BATCH = {"inputs": np.zeros((8, 1024), np.int32)}


def batches(seconds=0.0, count=10**9):
    """Batches that take so long, and nobody prefetches."""
    for _ in range(count):
        if seconds:
            time.sleep(seconds)
        yield BATCH


def sleeping(seconds):
    return lambda batch: time.sleep(seconds)


def quick(made, step, **options):
    return hr.examine_step(made, step, **{"steps": 8, "warmup": 1, "alone_s": 0.06, **options})


def test_a_step_whose_data_are_there_does_not_wait():
    found = quick(batches(), sleeping(0.01), flops_per_step=2e9, peak_flops=1e12)
    assert found.waiting < 0.5  # next to nothing, unless others have the cores
    assert found.mfu == pytest.approx(0.002 / found.evidence.period_s)
    assert found.evidence.replayed_s >= 0.01
    assert found.evidence.step_s >= 0.01
    assert found.tokens_per_s == pytest.approx(found.evidence.rate * 1024)
    assert found.loader_tokens_per_s > found.tokens_per_s
    assert "tokens/s" in str(found).splitlines()[-1]


def test_batches_that_are_made_while_the_step_waits_are_named():
    found = quick(batches(0.03), sleeping(0.03))
    assert (found.verdict.kind, found.verdict.healthy) == ("data", False)
    (change,) = found.verdict.changes
    assert change.gain > 1.1
    assert 0.2 < found.waiting < 0.8


def test_the_rate_of_a_loader_that_delivers_in_bursts_is_that_of_many_of_them():
    def bursts():
        while True:
            time.sleep(0.1)
            yield from [BATCH] * 10

    found = quick(bursts(), sleeping(0.001), steps=2)
    assert found.evidence.loader_alone == pytest.approx(8 * 10 / 0.1, rel=0.5)


def test_a_run_folder_gives_the_same_verdict_later(tmp_path, capsys):
    found = quick(batches(0.005), sleeping(0.005), run=tmp_path / "run")
    code = main(["doctor", "--run", str(tmp_path / "run")])
    assert code == 1
    assert found.verdict.headline in capsys.readouterr().out
    written = json.loads((tmp_path / "run/doctor.json").read_text())
    assert written["tokens_per_s"] == found.tokens_per_s


def test_batches_that_end_early_give_what_was_measured():
    found = quick(batches(count=6), sleeping(0.001))
    assert found.evidence.loader_alone is None
    assert found.verdict.kind == "unknown"
    with pytest.raises(UsageError, match="no batch"):
        quick([], sleeping(0.001))
    with pytest.raises(UsageError, match="samples="):
        quick([1, 2, 3], sleeping(0.001))
    with pytest.raises(UsageError, match="steps 0"):
        quick(batches(), sleeping(0.001), steps=0)


def test_a_program_whose_step_cannot_be_called_is_examined_by_what_it_asks_for():
    told, seen = [], []
    numbered = ({"inputs": np.full((8, 4), n)} for n in range(10**9))
    options = {"steps": 5, "warmup": 2, "alone_s": 0.01, "tell": told.append}
    for batch in hr.examine_loop(numbered, **options):
        seen.append(int(batch["inputs"][0, 0]))
        assert bool(told) == (len(seen) > 14)
        if len(seen) == 17:
            break
        time.sleep(0.002)
    assert np.diff(seen[:7]).tolist() == [1] * 6  # the loop
    assert seen[7:15] == [seen[6]] * 8  # what it would do with perfect data
    assert np.diff(seen[14:]).tolist() == [1, 1]  # and the program continues
    (found,) = told
    assert found.evidence.steps == 5
    assert found.evidence.replayed_s >= 0.002
    assert found.evidence.loader_alone > 0


def test_the_queued_work_of_a_jax_step_is_waited_for():
    jax = pytest.importorskip("jax")
    matrix = jax.numpy.ones((400, 400))
    multiply = jax.jit(
        lambda x, b: jax.lax.fori_loop(0, 20, lambda _, y: y @ x * 1e-3, x) + b.sum()
    )

    def step(batch):
        return multiply(matrix, batch["inputs"])

    def seconds():
        started = time.perf_counter()
        jax.block_until_ready(step(BATCH))
        return time.perf_counter() - started

    took = min(seconds() for _ in range(5))
    found = quick(batches(), step, steps=5)
    assert found.evidence.step_s > 0.2 * took  # by far more than it takes to queue it
    assert found.evidence.replayed_s > 0.2 * took

    told, kept = [], []
    for batch in hr.examine_loop(batches(), steps=5, warmup=1, alone_s=0.06, tell=told.append):
        kept = [step(batch)]  # which nobody waits for here
        if told:
            break
    assert kept
    assert told[0].evidence.step_s > 0.2 * took
    assert told[0].evidence.replayed_s > 0.2 * took
