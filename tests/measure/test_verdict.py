"""The rules behind the verdicts, on made-up numbers."""

import json
import re
from dataclasses import replace

import pytest

from headrace.errors import UsageError
from headrace.measure.evidence import STARVED, Evidence, SourceCost, evidence_lines, run_evidence
from headrace.measure.report.comparison import Range
from headrace.measure.results import different_work, read_run
from headrace.measure.verdict import (
    comparison_verdict,
    could_be_data,
    data_bound,
    decode_changes,
    give_verdict,
    nearer_limit,
    run_verdict,
    storage_changes,
    verdict_text,
)
from tests.measure.made_runs import write_made_run

JPEG = SourceCost("bridge", 0.6, "jpeg", 480, 640, 98e3, read_s=0.0001, decode_s=0.002)
PNG = SourceCost("hydra", 0.4, "png", 240, 320, 217e3, read_s=0.0001, decode_s=0.004)

#: Eight cores that decode 1,600 samples/s, and a step of batch 64 that could take them twice.
BUSY = Evidence(
    batch_size=64,
    steps=100,
    step_s=0.02,
    wait_s=0.02,
    decode_limit=1700.0,
    storage_limit=50_000.0,
    cores=8,
    cores_busy=7.9,
    workers=8,
    processes=8,
    slots=6,
    slots_wanted=6,
    image_size=(256, 256),
    sources=(JPEG, PNG),
)


def kind(evidence, **changes):
    return give_verdict(replace(evidence, **changes)).kind


def changes_of(verdict, words=("16 cores", "JPEG on the GPU", "hydra")):
    """Which of the words each change names, and its gain."""
    return [
        (next(word for word in words if word in change.what), round(change.gain, 1))
        for change in verdict.changes
    ]


def test_a_step_that_hardly_waits_is_compute_bound():
    verdict = give_verdict(replace(BUSY, step_s=0.1, wait_s=0.0004))
    assert (verdict.kind, verdict.healthy, verdict.changes) == ("compute", True, ())
    assert "0.4%" in verdict.headline


@pytest.mark.parametrize(("share", "found"), [(STARVED, "compute"), (STARVED + 0.001, "decode")])
def test_starved_begins_beyond_the_shared_limit(share, found):
    assert kind(BUSY, step_s=0.04 * (1 - share), wait_s=0.04 * share) == found


def test_waits_that_replayed_batches_do_not_avoid_cost_nothing():
    verdict = give_verdict(replace(BUSY, replayed_s=0.0395))
    assert (verdict.kind, verdict.healthy) == ("compute", True)
    assert "replayed" in verdict.headline


def test_decode_bound_names_the_cores_the_source_and_what_to_change():
    verdict = give_verdict(BUSY)
    assert (verdict.kind, verdict.healthy) == ("decode", False)
    for value in ("7.9 of 8 cores", "50%", "PNG of hydra takes 57%"):
        assert value in verdict.headline
    assert changes_of(verdict) == [("16 cores", 2.0), ("JPEG on the GPU", 1.7), ("hydra", 1.2)]


def test_no_gain_is_promised_beyond_the_step_with_perfect_data():
    bounded = replace(BUSY, replayed_s=0.036)
    for change in [*decode_changes(bounded), *storage_changes(bounded)]:
        assert change.gain is None or change.gain <= 0.04 / 0.036 + 1e-9


def test_a_replay_slower_than_the_loop_promises_nothing():
    assert decode_changes(replace(BUSY, replayed_s=0.08)) == ()


def test_a_large_png_is_better_stored_at_the_size_that_is_trained_on():
    large = replace(PNG, height=480, width=640)
    found = [c.what for c in decode_changes(replace(BUSY, sources=(JPEG, large)))]
    assert any("hydra at 256x256 instead of 480x640" in what for what in found)


def test_cores_that_the_loader_may_not_use_are_the_first_to_add():
    first = decode_changes(replace(BUSY, cores=16))[0]
    assert "all 16 cores" in first.what
    assert first.gain == pytest.approx(2)


def test_more_cores_than_anybody_has_are_not_advised():
    found = [c.what for c in decode_changes(replace(BUSY, step_s=1e-5, wait_s=0.04))]
    assert any("16 cores instead of 8" in what for what in found)


def test_storage_bound_where_reading_is_the_nearer_limit():
    verdict = give_verdict(replace(BUSY, decode_limit=9000.0, storage_limit=1650.0))
    assert (verdict.kind, verdict.healthy) == ("storage", False)
    assert "1,650 samples/s" in verdict.headline


def test_a_slow_store_is_seen_in_the_costs_where_the_disk_itself_is_fast():
    slow = tuple(replace(source, read_s=0.05) for source in (JPEG, PNG))
    assert kind(BUSY, decode_limit=9000.0, sources=slow, step_s=0.1, wait_s=0.3) == "storage"


def test_half_the_time_in_reads_is_halved_by_twice_the_threads():
    slow = replace(BUSY, step_s=0.0, sources=(replace(PNG, share=1.0, read_s=0.004),))
    found = next(change for change in storage_changes(slow) if "16" in change.what)
    assert found.gain == pytest.approx(2)


def test_copy_bound_where_the_copy_takes_longest():
    copied = replace(BUSY, step_s=0.1, wait_s=0.0, copy_s=0.09, copy_in_step=True)
    verdict = give_verdict(copied)
    assert (verdict.kind, verdict.healthy) == ("copy", False)
    assert "device='cuda'" in verdict.changes[0].what
    assert verdict.changes[0].gain == pytest.approx(0.1 / 0.09)
    assert kind(copied, copy_s=0.04) == "compute"  # the step itself takes longer


def test_a_copy_beside_the_step_is_the_limit_only_if_the_step_waits_for_it():
    beside = replace(BUSY, step_s=0.1, wait_s=0.0, copy_s=0.09)
    assert kind(beside) == "compute"
    assert kind(beside, copy_wait_s=0.06) == "copy"
    assert kind(beside, replayed_s=0.05) == "copy"


def test_memory_bound_prefetch_where_slots_are_held_down_and_the_loader_could_do_better():
    small = replace(
        BUSY, step_s=0.06, wait_s=0.03, slots=2, budget=100_000_000, slot_bytes=25_000_000
    )
    verdict = give_verdict(replace(small, budget_given=True))
    assert (verdict.kind, verdict.healthy) == ("memory", False)
    assert "room for 2 batches instead of 6" in verdict.headline
    assert "200 MB" in verdict.changes[0].what
    assert verdict.changes[0].gain == pytest.approx(1.5)
    found = give_verdict(replace(small, available=900_000_000, keep_free=1 << 30))
    assert "900 MB are available" in found.changes[0].what


def test_few_slots_are_not_blamed_where_decoding_is_the_limit():
    assert kind(BUSY, slots=2) == "decode"


def test_starved_by_the_python_loop_where_the_loader_alone_would_keep_up():
    verdict = give_verdict(replace(BUSY, step_s=0.06, wait_s=0.03, processes=0))
    assert (verdict.kind, verdict.healthy) == ("python", False)
    assert "711" in verdict.headline
    assert "processes" in verdict.changes[0].what
    assert verdict.changes[0].gain == pytest.approx(1.5)


def test_a_step_much_longer_than_replayed_is_the_loop_s_fault_though_nothing_waits():
    slow = replace(BUSY, step_s=0.1, wait_s=0.0, replayed_s=0.05)
    verdict = give_verdict(slow)
    assert (verdict.kind, verdict.healthy) == ("python", False)
    assert "100 ms" in verdict.headline
    assert "50 ms" in verdict.headline
    assert verdict.changes[0].gain == pytest.approx(2.0)
    assert kind(slow, replayed_s=0.095) == "compute"


def test_a_loop_that_uses_no_cpu_is_not_blamed():
    slow = replace(BUSY, step_s=0.06, wait_s=0.03)
    assert kind(slow, loop_cores=0.05) == "held up"
    assert kind(slow, loop_cores=0.6) == "python"


def test_workers_that_have_work_and_no_cores_are_held_up_from_outside():
    """Loop and limit are equally slow beside another program: that is no decode limit."""
    taken = replace(BUSY, idle=0.0, cores_busy=3.1)
    verdict = give_verdict(taken)
    assert (verdict.kind, verdict.healthy) == ("held up", False)
    assert "8 cores" in verdict.headline
    assert "3.1" in verdict.headline
    assert kind(taken, cores_busy=7.9) == "decode"
    assert kind(taken, idle=0.5) == "decode"
    assert kind(taken, storage_limit=1650.0, decode_limit=9000.0) == "storage"
    assert kind(taken, workers=3) == "decode"  # it may not use more


def test_threads_that_may_wait_for_python_are_not_said_to_lack_cores():
    taken = replace(BUSY, idle=0.0, cores_busy=1.2, processes=0, step_s=0.06, wait_s=0.03)
    assert kind(taken, loop_cores=0.6) == "python"
    assert kind(taken, loop_cores=0.05) == "held up"
    bare = replace(taken, sources=(), decode_limit=None, storage_limit=None, loop_cores=0.05)
    assert kind(bare) == "unknown"  # it may have been the disk
    assert kind(bare, processes=8, loop_work_s=0.004, loop_read_s=0.0001) == "held up"


def test_a_disk_that_was_slow_in_the_loop_is_storage_bound_though_it_is_fast_by_now():
    cold = replace(BUSY, loop_work_s=0.01, loop_read_s=0.008, step_s=0.02, wait_s=0.2)
    verdict = give_verdict(cold)
    assert verdict.kind == "storage"
    assert "80%" in verdict.headline
    assert kind(cold, processes=0, loop_cores=0.9) != "storage"


def test_a_loop_that_only_waits_or_sleeps_is_in_nobody_s_way():
    assert kind(BUSY, step_s=0.0001, wait_s=0.09) == "held up"
    assert kind(BUSY, step_s=0.06, wait_s=0.03, simulated=True) == "held up"


def test_without_a_step_it_says_what_the_loader_can_feed():
    alone = replace(BUSY, step_s=None, wait_s=None, loader_alone=1600.0)
    verdict = give_verdict(alone)
    assert (verdict.kind, verdict.healthy) == ("feeds", True)
    for value in ("1,600 samples/s", "batch 64", "40 ms", "decoding"):
        assert value in verdict.headline
    assert kind(alone, loader_alone=800.0) == "held up"
    assert kind(alone, loader_alone=800.0, slots=2) == "memory"
    assert "reading" in give_verdict(replace(alone, storage_limit=1600.0)).headline


def test_mfu_says_how_much_of_what_is_missing_is_data():
    known = replace(BUSY, flops_per_step=4e12, peak_flops=400e12, replayed_s=0.02)
    (line,) = (line for line in give_verdict(known).evidence if "MFU" in line)
    assert [word for word in line.replace(";", " ").replace(":", " ").split() if "%" in word] == [
        "25.0%",
        "50.0%",
        "33%",
    ]
    assert not [line for line in give_verdict(BUSY).evidence if "MFU" in line]


def test_without_any_figure_nothing_is_claimed():
    for nothing in (Evidence(), Evidence(batch_size=64), Evidence(step_s=0.0, wait_s=0.0)):
        verdict = give_verdict(nothing)
        assert (verdict.kind, verdict.healthy) == ("unknown", False)
        assert verdict.changes == ()


def test_a_step_of_no_length_that_only_waits_can_be_judged():
    verdict = give_verdict(replace(BUSY, step_s=0.0, wait_s=0.04))
    assert verdict.kind == "decode"
    assert "100%" in verdict.headline


def test_a_wait_whose_cause_was_not_measured_is_said_to_be_unexplained():
    bare = Evidence(batch_size=64, steps=10, step_s=0.05, wait_s=0.05)
    verdict = give_verdict(bare)
    assert (verdict.kind, verdict.healthy) == ("unknown", False)
    assert "50%" in verdict.headline
    assert any(line.startswith("not measured: ") for line in verdict.evidence)
    busy = give_verdict(replace(bare, idle=0.01))
    only_alone = give_verdict(replace(bare, loader_alone=640.0, workers=2))
    assert {busy.kind, only_alone.kind} == {"unknown"}
    assert len({verdict.headline, busy.headline, only_alone.headline}) == 3


def test_evidence_survives_json_and_unknown_keys():
    assert Evidence.from_dict({**BUSY.to_dict(), "later": 1}) == BUSY
    earlier = {**BUSY.to_dict(), "threads": 8}
    del earlier["workers"]
    assert Evidence.from_dict(earlier) == BUSY


def test_the_text_has_verdict_changes_evidence_and_costs_and_no_control_characters():
    odd = replace(BUSY, sources=(replace(PNG, name="a\x1b[31m\nb", share=1.0),))
    text = verdict_text(give_verdict(odd), odd)
    lines = text.splitlines()
    assert lines[0] == give_verdict(odd).headline.replace("\x1b", " ").replace("\n", " ")
    assert any(line.startswith("  change: ") for line in lines)
    assert "decoding 1,700 samples/s" in text
    assert "100%  png 240x320" in text
    assert all(line.isprintable() for line in lines)


def test_room_for_more_batches_than_wanted_is_not_told_as_a_share():
    for slots, told in ((2, "room for 2 of 6 batches"), (7, "room for 7 batches")):
        evidence = replace(BUSY, slots=slots)
        assert told in verdict_text(give_verdict(evidence), evidence)


# -- a loader that is known only by what it delivers alone ---------------------------------------

#: A loop that waits half of its time for a loader that does what it can.
OTHER = Evidence(batch_size=10, steps=20, step_s=0.1, wait_s=0.1, replayed_s=0.1, loader_alone=50.0)


def test_a_loader_at_its_own_limit_is_the_limit():
    verdict = data_bound(OTHER)
    assert (verdict.kind, verdict.healthy) == ("data", False)
    for value in ("50%", "50 samples/s", "100"):
        assert value in verdict.headline
    assert verdict.changes[0].gain == pytest.approx(2)


def test_a_loader_that_does_not_work_beside_the_step_should_prefetch():
    verdict = data_bound(replace(OTHER, loader_alone=100.0))
    assert "100 ms" in verdict.headline
    assert verdict.changes[0].gain == pytest.approx(2)


@pytest.mark.parametrize(
    "changes",
    [
        {"wait_s": 0.0},  # does not wait
        {"loader_alone": None},  # nobody knows
        {"workers": 2},  # a loader whose inside is known has rules of its own
        {"loader_alone": 500.0, "wait_s": 0.01},  # faster than the loop asks for
    ],
)
def test_what_does_not_wait_or_is_known_better_is_not_called_data_bound(changes):
    assert data_bound(replace(OTHER, **changes)) is None


def test_a_low_mfu_is_or_is_not_due_to_the_data():
    # 45% with perfect data; 15% would be 200 ms of waiting a step of 100 ms.
    known = replace(OTHER, wait_s=0.0, flops_per_step=45e9, peak_flops=1e12)

    def answer(alone, mfu=0.15):
        return could_be_data(replace(known, loader_alone=alone), mfu).split()[0].strip(":")

    assert [answer(alone) for alone in (1000.0, 40.0, 20.0, None)] == ["No", "Only", "Yes", "Not"]
    assert answer(20.0, mfu=0.6) == "No"  # more than perfect data would give
    with pytest.raises(UsageError, match="15"):
        answer(20.0, mfu=15)


# -- runs ------------------------------------------------------------------------------------------


def made_run(tmp_path, **values):
    return read_run(write_made_run(tmp_path / "run", **values))


def test_the_verdict_of_a_run_says_how_near_it_came_to_the_decode_limit(tmp_path):
    for ratio, word in ((0.97, "At"), (0.88, "Near"), (0.4, "Far below")):
        said = run_verdict(made_run(tmp_path, limit_ratio=ratio))
        assert f"{word} the decode limit ({ratio:.0%})" in said


@pytest.mark.parametrize(("stall", "step"), [(0.0001, 80), (0.02, 80), (0.1, 0), (0.1, None)])
def test_the_verdict_of_a_run_is_that_of_the_rules(tmp_path, stall, step):
    run = made_run(tmp_path, stall_s_per_step=stall, mean_s=0.1, simulated_step_ms=step)
    verdict = give_verdict(run_evidence(run))
    assert verdict.headline in run_verdict(run)
    assert verdict.kind in (("feeds", "held up") if step == 0 else ("compute", "held up", "decode"))


def test_the_verdict_of_a_run_says_how_it_ended_and_whether_it_was_uneven(tmp_path):
    said = run_verdict(made_run(tmp_path, status="failed", cause="killed.", p50_s=0.01, p99_s=0.5))
    assert said.startswith("Failed: killed. ")
    assert "50 times" in said


def test_a_run_without_figures_has_no_verdict(tmp_path):
    (tmp_path / "memory.jsonl").touch()
    assert run_verdict(read_run(tmp_path)) == "Incomplete. Nothing was measured."


def test_what_a_doctor_has_left_in_a_run_counts_and_what_is_damaged_does_not(tmp_path):
    folder = write_made_run(tmp_path / "run")
    (folder / "doctor.json").write_text(json.dumps({"evidence": BUSY.to_dict()}))
    assert run_evidence(read_run(folder)) == BUSY
    (folder / "doctor.json").write_text('{"evidence": {"sources": [3]}}')
    found = run_evidence(read_run(folder))
    assert found.steps > 0
    assert any("doctor.json" in note for note in found.notes)
    (folder / "doctor.json").write_text("{")
    assert any("doctor.json" in note for note in run_evidence(read_run(folder)).notes)


def test_repeats_whose_ranges_overlap_name_no_winner(tmp_path):
    def figures(low, median, high):
        return {"samples_per_s": Range(median, low, high, 3)}

    apart = {"a": figures(90, 100, 110), "b": figures(50, 60, 70)}
    said = comparison_verdict([], apart)
    assert said.startswith("a is fastest")
    assert "1.67" in said
    close = {"a": figures(90, 100, 110), "b": figures(80, 97, 105)}
    assert "equally fast" in comparison_verdict([], close)
    assert "nothing to compare" in comparison_verdict([made_run(tmp_path)], {})


def bench_config(**changes):
    """The config that a benchmark leaves, with some of it changed."""
    step = changes.pop("step", 0)
    sources = [{"name": "bridge", "weight": 0.5, "split": "train"}, {"name": "rt1", "weight": 0.5}]
    job = {"mixture": {"root": "/data", "sources": sources}, "options": {}}
    job |= {"batch_size": 64, "image_size": 256, "seed": 0, "metadata": "full", "workers": None}
    return {"config": {"job": {**job, **changes}}, "simulated_step_ms": step}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image_size": 64}, "image size (256 against 64)"),
        ({"metadata": "none"}, "metadata (full against none)"),
        ({"frames": "single"}, "frames (default against single)"),
        ({"options": {"metadata.mode": "dataset_only"}}, "metadata (full against dataset)"),
        ({"mixture": {"sources": [{"name": "bridge"}]}}, "mixture (2 sources against 1 sources)"),
        ({"step": 20}, "step (no step against a simulated step of 20 ms)"),
    ],
)
def test_runs_that_did_different_work_have_no_verdict(tmp_path, changes, said):
    one = read_run(write_made_run(tmp_path / "a", rate=900, **bench_config()))
    two = read_run(write_made_run(tmp_path / "b", rate=300, **bench_config(**changes)))
    assert different_work([one, two]) == [said]
    verdict = comparison_verdict([one, two], {})
    assert said in verdict
    assert "fast" not in verdict


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"workers": 8},
        {"batch_size": 128},
        {"image_size": [256, 256]},
        {"options": {"memory": "2GiB"}},
    ],
)
def test_how_the_same_work_is_done_may_differ(tmp_path, changes):
    one = read_run(write_made_run(tmp_path / "a", rate=900, **bench_config()))
    two = read_run(write_made_run(tmp_path / "b", rate=300, **bench_config(**changes)))
    assert "a is fastest" in comparison_verdict([one, two], {})


def test_a_training_run_is_not_compared_with_a_loader_alone(tmp_path):
    config = {"data": {"loader": {"batch_size": 64, "image_size": 256, "metadata": "full"}}}
    trained = {"program": "train", "config": {**config, "model": {"dim": 96}}}
    one = read_run(write_made_run(tmp_path / "a", **bench_config()))
    two = read_run(write_made_run(tmp_path / "b", **trained, backend="tfdata"))
    three = read_run(write_made_run(tmp_path / "c", rate=300, **trained))
    other = read_run(
        write_made_run(tmp_path / "d", program="train", config={**config, "model": {"dim": 48}})
    )
    assert any("a training step" in each for each in different_work([one, two]))
    assert different_work([two, three]) == []
    assert different_work([two, other]) == ["model"]
    drawn = {**config, "data": {**config["data"], "defaults": {"offset": 9}}, "model": {"dim": 96}}
    other = read_run(write_made_run(tmp_path / "e", program="train", config=drawn))
    assert different_work([two, other]) == ["data"]
    assert "b is fastest" in comparison_verdict([two, three], {})


def test_the_nearer_limit_is_named_with_both():
    assert nearer_limit(BUSY).startswith("decoding (")
    assert nearer_limit(replace(BUSY, storage_limit=100.0)).startswith("storage (")
    assert nearer_limit(Evidence()) is None


def test_every_stage_of_a_sample_is_told_also_of_runs_without_some(tmp_path):
    stages = {"read": 0.1, "decode": 4.0, "resize": 1.2, "fields": 0.0}
    with_resize = {name: {"busy_s": s, "waiting_s": 0.0} for name, s in stages.items()}
    old = {name: with_resize[name] for name in ("read", "decode")}
    for given, count in ((with_resize, 3), (old, 2)):
        run = made_run(tmp_path, stages=given, samples=1000)
        found = run_evidence(run)
        assert found.loop_stages == pytest.approx(
            {n: stages[n] / 1000 for n in list(stages)[:count]}
        )
        assert Evidence.from_dict(json.loads(json.dumps(found.to_dict()))) == found
        (line,) = (
            each for each in evidence_lines(found) if each.startswith("a sample in the loop")
        )
        assert ("1.2 ms resize" in line) == (given is with_resize)


def test_the_use_of_a_gpu_is_told_where_it_is_known():
    gpu = {
        "name": "NVIDIA H200",
        "utilization_percent": {"mean": 97.2, "p10": 93.0},
        "memory_peak_bytes": 57_800_000_000,
        "memory_total_bytes": 150_000_000_000,
        "mfu": 0.31,
    }
    (line,) = (each for each in evidence_lines(Evidence(gpu=gpu)) if each.startswith("GPU"))
    assert {"H200", "97%", "93%", "57.8", "150.0"} <= set(re.findall(r"[\w.]+%?", line))
    (line,) = (
        each
        for each in evidence_lines(Evidence(gpu={**gpu, "utilization_percent": None}))
        if each.startswith("GPU")
    )
    assert "%" not in line
