"""The rules behind the verdicts, on made-up numbers."""

from dataclasses import replace

import pytest

from headrace.measure.starvation import STARVED
from headrace.tuning.doctor import Evidence, SourceCost, give_verdict, verdict_text
from headrace.tuning.doctor.gains import decode_changes, gain, storage_changes

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
    threads=8,
    processes=8,
    slots=6,
    slots_wanted=6,
    image_size=(256, 256),
    sources=(JPEG, PNG),
)


def kind(evidence, **changes):
    return give_verdict(replace(evidence, **changes)).kind


def test_a_step_that_hardly_waits_is_compute_bound():
    verdict = give_verdict(replace(BUSY, step_s=0.1, wait_s=0.0004))
    assert (verdict.kind, verdict.healthy, verdict.changes) == ("compute", True, ())
    assert verdict.headline == (
        "Compute-bound: data waits 0.4% of the step; a faster loader cannot help."
    )


@pytest.mark.parametrize(("share", "found"), [(STARVED, "compute"), (STARVED + 0.001, "decode")])
def test_starved_begins_beyond_the_shared_limit(share, found):
    assert kind(BUSY, step_s=0.04 * (1 - share), wait_s=0.04 * share) == found


def test_waits_that_replayed_batches_do_not_avoid_cost_nothing():
    verdict = give_verdict(replace(BUSY, replayed_s=0.0395))
    assert (verdict.kind, verdict.healthy) == ("compute", True)
    assert "replayed batches are no faster" in verdict.headline


def test_decode_bound_names_the_cores_the_source_and_what_to_change():
    verdict = give_verdict(BUSY)
    assert (verdict.kind, verdict.healthy) == ("decode", False)
    assert verdict.headline == (
        "Decode-bound: 7.9 of 8 cores busy, data wait 50% of the step; PNG of hydra takes 57% of "
        "the decode time."
    )
    assert [str(change) for change in verdict.changes] == [
        "16 cores instead of 8: about 2.0x",
        "Decode JPEG on the GPU (43% of the decode time): about 1.7x",
        "Halve the weight of hydra: about 1.2x",
    ]


def test_no_gain_is_promised_beyond_the_step_with_perfect_data():
    bounded = replace(BUSY, replayed_s=0.036)
    for change in [*decode_changes(bounded), *storage_changes(bounded)]:
        assert change.gain is None or change.gain <= 0.04 / 0.036 + 1e-9


def test_a_replay_slower_than_the_loop_promises_nothing():
    assert gain(replace(BUSY, replayed_s=0.08), 0.0) == 1.0
    assert decode_changes(replace(BUSY, replayed_s=0.08)) == []


def test_a_large_png_is_better_stored_at_the_size_that_is_trained_on():
    large = replace(PNG, height=480, width=640)
    found = [c.what for c in decode_changes(replace(BUSY, sources=(JPEG, large)))]
    assert "Store hydra at 256x256 instead of 480x640" in found


def test_cores_that_the_loader_may_not_use_are_the_first_to_add():
    found = [str(c) for c in decode_changes(replace(BUSY, cores=16))]
    assert found[0] == "Let the loader use all 16 cores (workers=16): about 2.0x"


def test_more_cores_than_anybody_has_are_not_advised():
    found = [c.what for c in decode_changes(replace(BUSY, step_s=1e-5, wait_s=0.04))]
    assert "16 cores instead of 8" in found


def test_storage_bound_where_reading_is_the_nearer_limit():
    verdict = give_verdict(replace(BUSY, decode_limit=9000.0, storage_limit=1650.0))
    assert (verdict.kind, verdict.healthy) == ("storage", False)
    assert "reading allows 1,650 samples/s" in verdict.headline


def test_a_slow_store_is_seen_in_the_costs_where_the_disk_itself_is_fast():
    slow = tuple(replace(source, read_s=0.05) for source in (JPEG, PNG))
    assert kind(BUSY, decode_limit=9000.0, sources=slow, step_s=0.1, wait_s=0.3) == "storage"


def test_half_the_time_in_reads_is_halved_by_twice_the_threads():
    slow = replace(BUSY, step_s=0.0, sources=(replace(PNG, share=1.0, read_s=0.004),))
    found = [str(change) for change in storage_changes(slow)]
    assert "Let 16 threads wait for it (workers=16): about 2.0x" in found


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
    assert verdict.changes[0].what == "Raise the budget to 200 MB"
    assert verdict.changes[0].gain == pytest.approx(1.5)
    found = give_verdict(replace(small, available=900_000_000, keep_free=1 << 30))
    assert found.changes[0].what.startswith("Free memory on the machine: 900 MB are available")


def test_few_slots_are_not_blamed_where_decoding_is_the_limit():
    assert kind(BUSY, slots=2) == "decode"


def test_starved_by_the_python_loop_where_the_loader_alone_would_keep_up():
    verdict = give_verdict(replace(BUSY, step_s=0.06, wait_s=0.03, processes=0))
    assert (verdict.kind, verdict.healthy) == ("python", False)
    assert "in this loop it is 711" in verdict.headline
    assert "processes" in verdict.changes[0].what
    assert verdict.changes[0].gain == pytest.approx(1.5)


def test_a_step_much_longer_than_replayed_is_the_loop_s_fault_though_nothing_waits():
    slow = replace(BUSY, step_s=0.1, wait_s=0.0, replayed_s=0.05)
    verdict = give_verdict(slow)
    assert (verdict.kind, verdict.healthy) == ("python", False)
    assert "100 ms in the loop and 50 ms" in verdict.headline
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
    assert "had work for 8 cores, but this program got only 3.1" in verdict.headline
    assert kind(taken, cores_busy=7.9) == "decode"
    assert kind(taken, idle=0.5) == "decode"
    assert kind(taken, storage_limit=1650.0, decode_limit=9000.0) == "storage"
    assert kind(taken, threads=3) == "decode"  # it may not use more


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
    assert "workers spend 80% of their time in reads" in verdict.headline
    assert kind(cold, processes=0, loop_cores=0.9) != "storage"


def test_a_loop_that_only_waits_or_sleeps_is_in_nobody_s_way():
    assert kind(BUSY, step_s=0.0001, wait_s=0.09) == "held up"
    assert kind(BUSY, step_s=0.06, wait_s=0.03, simulated=True) == "held up"


def test_without_a_step_it_says_what_the_loader_can_feed():
    alone = replace(BUSY, step_s=None, wait_s=None, loader_alone=1600.0)
    verdict = give_verdict(alone)
    assert (verdict.kind, verdict.healthy) == ("feeds", True)
    assert verdict.headline == (
        "The loader feeds 1,600 samples/s: at batch 64 a step longer than 40 ms will not wait; "
        "decoding limits it."
    )
    assert kind(alone, loader_alone=800.0) == "held up"
    assert kind(alone, loader_alone=800.0, slots=2) == "memory"
    assert "reading limits it" in give_verdict(replace(alone, storage_limit=1600.0)).headline


def test_mfu_says_how_much_of_what_is_missing_is_data():
    known = replace(BUSY, flops_per_step=4e12, peak_flops=400e12, replayed_s=0.02)
    lines = give_verdict(known).evidence
    assert (
        "MFU 25.0%; with perfect data 50.0%: data is 33% of what is missing, the rest is the "
        "model's own" in lines
    )
    assert not [line for line in give_verdict(BUSY).evidence if "MFU" in line]


def test_without_any_figure_nothing_is_claimed():
    for nothing in (Evidence(), Evidence(batch_size=64), Evidence(step_s=0.0, wait_s=0.0)):
        verdict = give_verdict(nothing)
        assert (verdict.kind, verdict.healthy) == ("unknown", False)
        assert "Nothing was measured" in verdict.headline


def test_a_step_of_no_length_that_only_waits_can_be_judged():
    verdict = give_verdict(replace(BUSY, step_s=0.0, wait_s=0.04))
    assert verdict.kind == "decode"
    assert "data wait 100%" in verdict.headline


def test_a_wait_whose_cause_was_not_measured_is_said_to_be_unexplained():
    bare = Evidence(batch_size=64, steps=10, step_s=0.05, wait_s=0.05)
    verdict = give_verdict(bare)
    assert (verdict.kind, verdict.healthy) == ("unknown", False)
    assert "the cause is not known" in verdict.headline
    assert any(line.startswith("not measured: the step replayed") for line in verdict.evidence)
    busy = give_verdict(replace(bare, idle=0.01))
    assert "busy all the time" in busy.headline
    only_alone = give_verdict(replace(bare, loader_alone=640.0, threads=2))
    assert "whether reading or decoding limits it is not known" in only_alone.headline


def test_evidence_survives_json_and_unknown_keys():
    assert Evidence.from_dict({**BUSY.to_dict(), "later": 1}) == BUSY


def test_the_text_has_verdict_changes_evidence_and_costs_and_no_control_characters():
    odd = replace(BUSY, sources=(replace(PNG, name="a\x1b[31m\nb", share=1.0),))
    text = verdict_text(give_verdict(odd), odd)
    assert text.startswith("Decode-bound")
    assert "  change: " in text
    assert "limits: decoding 1,700 samples/s" in text
    assert "\x1b" not in text
    assert "100%  png 240x320" in text


def test_room_for_more_batches_than_wanted_is_not_told_as_a_share():
    for slots, told in ((2, "room for 2 of 6 batches"), (7, "room for 7 batches")):
        evidence = replace(BUSY, slots=slots)
        assert told in verdict_text(give_verdict(evidence), evidence)
