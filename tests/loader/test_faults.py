"""What goes wrong: damaged data, small budgets, other states, consumers that stop."""

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import headrace as hr
from headrace.errors import BudgetError, DatasetError, ImageError, SplitError, UsageError
from headrace.loader.loader import feed_of
from headrace.reading.local import LocalFiles
from tests.loader.conftest import NAMES, make_mixture, spoil_frame
from tests.loader.test_loader import digest, rows, sequence


@pytest.mark.parametrize("quick", [False, True])
def test_a_damaged_frame_raises_with_its_place(own, loaders, quick):
    """Whether its checksum or, in a quick catalog, the decoder finds it."""
    hr.Catalog.open(own / "bridge" / "0.1.0", quick=quick)
    number, t, where = spoil_frame(own)
    loader = loaders(make_mixture(own, ["bridge"]), files=LocalFiles())
    with pytest.raises(ImageError) as caught:
        for _ in range(40):
            next(loader)
    error = caught.value
    assert (error.dataset, error.file, error.frame) == ("bridge", where.path, t)
    assert error.offset == where.offset
    assert error.episode == hr.Catalog.open(own / "bridge" / "0.1.0").info(number).id
    with pytest.raises(ImageError):
        next(loader)


def test_a_damaged_frame_can_be_skipped_and_is_counted_and_listed(own, loaders):
    number, t, _ = spoil_frame(own)
    mixture = make_mixture(own, ["bridge", "droid"])
    runs = []
    for threads in (1, 4):
        loader = loaders(mixture, files=LocalFiles(), on_error="skip", workers=threads)
        runs.append(sequence(loader, 80))
        figures = loader.statistics()
        assert figures.skipped > 0
        assert [(one.dataset, one.frame) for one in figures.damaged] == [("bridge", t)]
    assert runs[0] == runs[1], "what replaces a damaged sample depends on the threads"
    loader = loaders(mixture, files=LocalFiles(), on_error="skip")
    catalog = feed_of(loader).sources[0].catalog
    info = catalog.info(number)
    shard = [s.file for s in catalog.manifest.shards].index(info.file)
    for _ in range(40):
        for name, episode, start in rows(next(loader)):
            damaged = (name, episode) == ("bridge", shard << 32 | info.record)
            assert not (damaged and t in (start, start + 2))


def test_a_few_damaged_frames_do_not_end_a_long_run(own, loaders, caplog):
    places = [spoil_frame(own, episode, t) for episode, t in ((0, 2), (1, 3), (2, 4))]
    loader = loaders(make_mixture(own, ["bridge"]), on_error="skip", max_errors=3)
    for _ in range(60):
        next(loader)
    figures = loader.statistics()
    assert figures.skipped > 20 > len(figures.damaged) == 3
    found = {(one.file, one.offset, one.frame) for one in figures.damaged}
    assert found == {(where.path, where.offset, t) for _, t, where in places}
    for one in figures.damaged:  # each was logged once, with its place
        told = [line for line in caplog.messages if f"offset {one.offset}, " in line]
        assert len(told) == 1
        assert one.file in told[0]


def test_skipping_ends_past_its_limit_and_says_what_to_do(own, loaders):
    for t in (2, 3, 4):
        spoil_frame(own, 1, t)
    loader = loaders(make_mixture(own, ["bridge"]), on_error="skip", max_errors=2)
    with pytest.raises(ImageError) as caught:
        for _ in range(100):
            next(loader)
    assert caught.value.frame in (2, 3, 4)
    assert caught.value.file
    for word in ("skip", "max_errors", "verify --quarantine"):
        assert word in str(caught.value)


def test_a_source_without_one_readable_sample_ends_the_run(own, loaders):
    catalog = hr.Catalog.open(own / "bridge" / "0.1.0")
    for episode in range(3):
        for t in range(int(catalog.steps[catalog.episodes("train")[episode]])):
            spoil_frame(own, episode, t)
    with pytest.raises(ImageError, match="max_errors"):
        next(loaders(make_mixture(own, ["bridge"]), on_error="skip"))


def test_how_many_damaged_frames_are_passed_over():
    skip = hr.LoaderOptions(on_error="skip")
    assert skip.most_damaged(251) == 100
    assert skip.most_damaged(77_000_000) == 77_000
    assert hr.LoaderOptions(on_error="skip", max_errors=7).most_damaged(77_000_000) == 7
    assert hr.LoaderOptions().most_damaged(251) is None


def test_a_shard_replaced_during_training_is_read_on_while_it_is_open(own, loaders):
    mixture = make_mixture(own, ["bridge"])
    straight = sequence(loaders(mixture, files=LocalFiles(), workers=1), 120)
    loader = loaders(mixture, files=LocalFiles(), workers=1)
    found = sequence(loader, 40)
    for shard in (own / "bridge" / "0.1.0").glob("*.tfrecord-*"):
        data = shard.read_bytes()
        shard.unlink()
        shard.write_bytes(data[: len(data) // 2])
    assert found + sequence(loader, 80) == straight


@pytest.mark.parametrize(
    ("change", "words"),
    [(os.unlink, "No such file"), (lambda p: os.utime(p, ns=(1, 1)), "changed since it was")],
)
def test_a_shard_that_must_be_opened_again_and_is_another_one_is_an_error(
    own, loaders, change, words
):
    # One open file, two sources: a file is opened anew at every other sample.
    mixture = make_mixture(own, ["bridge", "droid"])
    loader = loaders(mixture, files=LocalFiles(max_open=1), workers=1)
    next(loader)
    for shard in (own / "bridge" / "0.1.0").glob("*.tfrecord-*"):
        change(shard)
    with pytest.raises(DatasetError, match=words) as caught:
        for _ in range(200):
            next(loader)
    assert caught.value.dataset == "bridge"
    assert caught.value.remedy


def test_a_stale_catalog_is_renewed_when_the_loader_is_made(own, loaders):
    mixture = make_mixture(own, ["bridge"])
    before = sequence(loaders(mixture), 12)
    for shard in (own / "bridge" / "0.1.0").glob("*.tfrecord-*"):
        os.utime(shard, ns=(3, 3))
    assert sequence(loaders(mixture), 12) == before


# -- memory --------------------------------------------------------------------------------------


def test_a_budget_below_two_batches_is_an_error_with_the_numbers(mixture, loaders):
    with pytest.raises(BudgetError, match=r"5 MiB does not hold two batches: each has 12\.0"):
        loaders(mixture, batch_size=32, image_size=256, memory="5MiB")


def test_a_batch_larger_than_memory_is_an_error_before_anything_is_taken(mixture, loaders):
    with pytest.raises(BudgetError, match="does not hold two batches"):
        loaders(mixture, batch_size=1_000_000, image_size=1024)


@pytest.mark.parametrize("budget", ["18MiB", "24MiB", "64MiB"])
def test_the_budget_is_never_exceeded(mixture, loaders, budget):
    loader = loaders(mixture, batch_size=8, image_size=128, memory=budget)
    sequence(loader, 64)
    list(loader.validation(limit_batches=4))
    sequence(loader, 64)
    figures = loader.statistics().engine.budget
    assert 0 < figures.peak <= figures.limit


def test_sizes_are_understood_and_nonsense_is_not(mixture, loaders):
    assert loaders(mixture, memory="0.1GiB").statistics().engine.budget.limit == 107374182
    with pytest.raises(UsageError, match="'lots'"):
        loaders(mixture, memory="lots")


# -- mixtures that cannot be ---------------------------------------------------------------------


def test_an_empty_split_names_source_split_and_episodes(data, loaders):
    with pytest.raises(SplitError, match=r"train\[:1%\]") as caught:
        loaders(make_mixture(data, ["bridge"], split="train[:1%]"))
    assert "bridge" in str(caught.value)


def test_an_offset_longer_than_every_episode_is_an_error(data, loaders):
    with pytest.raises(UsageError, match="none is longer than the offset") as caught:
        loaders(make_mixture(data, ["bridge", "droid"], offset=50))
    assert caught.value.dataset == "bridge"


def test_episodes_shorter_than_the_offset_drop_out_and_are_counted(data, loaders):
    catalog = hr.Catalog.open(data / "kuka" / "0.1.0")
    lengths = sorted(int(catalog.steps[e]) for e in catalog.episodes("train"))
    assert lengths[0] < lengths[-1]
    mixture = make_mixture(data, ["kuka"], split="train", offset=lengths[0])
    loader = loaders(mixture)
    short = sum(length <= lengths[0] for length in lengths)
    assert loader.statistics().too_short == {"kuka": short}
    sequence(loader, 20)


def test_windows_of_different_lengths_cannot_be_in_one_batch(data, loaders):
    mixture = hr.Mixture.from_dict(
        {
            "root": str(data),
            "sources": [{"name": "bridge", "offset": 2}, {"name": "droid", "offset": 3}],
        }
    )
    with pytest.raises(UsageError, match="different numbers of frames"):
        loaders(mixture, frames="all")
    next(loaders(mixture, frames="endpoints"))


def test_a_depth_camera_cannot_fill_frames(tmp_path, loaders):
    from headrace.testing import synthesize

    synthesize(tmp_path, only=["maniskill"], episodes=1, _max_steps=4)
    mixture = hr.Mixture.from_dict(
        {"root": str(tmp_path), "sources": [{"name": "maniskill", "camera": "depth"}]}
    )
    with pytest.raises(UsageError, match="uint16"):
        loaders(mixture)


def test_a_mixture_without_a_validation_split_says_so(data, loaders):
    loader = loaders(make_mixture(data, ["bridge"], val_split=None))
    with pytest.raises(SplitError, match="validation split"):
        loader.validation()


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"image_size": 0},
        {"metadata": "some"},
        {"on_error": "ignore"},
        {"resize": "magic"},
        {"frames": "few"},
    ],
)
def test_options_that_cannot_be_are_refused_by_name(mixture, loaders, options):
    ((_, value),) = options.items()
    with pytest.raises(UsageError, match=str(value)):
        loaders(mixture, **options)


# -- states --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"names": NAMES[1:]}, "bridge"),
        ({"offset": 3}, "frames"),
        ({"split": "train[:2]"}, "split"),
        ({"samples_per_episode": 2}, "samples_per_episode"),
    ],
)
def test_a_state_of_another_mixture_says_what_differs(data, mixture, loaders, change, words):
    state = loaders(mixture).state_dict()
    with pytest.raises(UsageError, match=words):
        loaders(make_mixture(data, **change)).load_state_dict(state)


def test_a_state_of_another_seed_says_so(mixture, loaders):
    state = loaders(mixture, seed=1).state_dict()
    with pytest.raises(UsageError, match="seed was 1, is 0"):
        loaders(mixture).load_state_dict(state)
    with pytest.raises(UsageError, match="loader state"):
        loaders(mixture).load_state_dict({})


def test_a_state_survives_json(mixture, loaders):
    loader = loaders(mixture)
    sequence(loader, 8)
    state = json.loads(json.dumps(loader.state_dict()))
    other = loaders(mixture)
    other.load_state_dict(state)
    assert sequence(other, 4) == sequence(loader, 4)


# -- stopping ------------------------------------------------------------------------------------


def headrace_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("headrace")]


def test_an_exception_in_the_consumer_ends_the_threads(mixture):
    with (
        pytest.raises(ZeroDivisionError),
        hr.Loader(mixture, batch_size=4, image_size=32, keep_free=0) as loader,
    ):
        next(loader)
        1 / 0  # noqa: B018
    assert headrace_threads() == []


def test_an_abandoned_loader_ends_its_threads(mixture):
    loader = hr.Loader(mixture, batch_size=4, image_size=32, keep_free=0, frames="single")
    kept = next(loader)
    value = digest(kept)
    del loader
    gc.collect()
    assert headrace_threads() == []
    assert digest(kept) == value, "a batch that is still held must outlive its loader"


def test_a_closed_loader_says_so(mixture, loaders):
    for begun in (True, False):
        loader = loaders(mixture)
        validation = loader.validation()
        if begun:
            next(loader)
            next(validation)
        loader.close()
        loader.close()
        for use in (loader.validation, lambda: next(loader), lambda: list(loader)):  # noqa: B023
            with pytest.raises(UsageError, match="closed"):
                use()
        with pytest.raises(UsageError, match="closed"):  # not a pass that is merely shorter
            list(validation)


def test_a_consumer_that_waits_is_told_that_the_loader_was_closed(mixture, loaders):
    loader = loaders(mixture)
    next(loader)
    closing = threading.Timer(0.1, loader.close)
    closing.start()
    with pytest.raises(UsageError, match="closed"):
        while True:
            next(loader)
    closing.join()


SCRIPT = """
    import json, os, signal, sys, threading
    import headrace as hr
    mixture = hr.Mixture.from_dict(json.loads(sys.argv[1]))
    loader = hr.Loader(mixture, batch_size=4, image_size=32, keep_free=0, frames="single")
    next(loader)
"""


def run(mixture, rest, **options):
    code = textwrap.dedent(SCRIPT) + textwrap.dedent(rest)
    return subprocess.run(
        [sys.executable, "-c", code, json.dumps(mixture.to_dict())],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def test_the_interpreter_exits_with_a_loader_open(mixture):
    done = run(mixture, "kept = next(loader); print('end')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_ctrl_c_while_waiting_for_a_batch_ends_the_program(mixture):
    done = run(
        mixture,
        """
        main = threading.main_thread().ident
        threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
        try:
            while True:
                next(loader)
        except KeyboardInterrupt:
            print('interrupted')
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_fork_after_the_start_is_told_in_the_child_and_the_parent_goes_on(mixture):
    done = run(
        mixture,
        """
        pid = os.fork()
        if pid == 0:
            for use in (lambda: next(loader), loader.validation):
                try:
                    use()
                except hr.HeadraceError as error:
                    print('child:', 'another process' in str(error), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        next(loader)
        print('parent goes on')
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "child: True",
        "child: True",
        "parent goes on",
    ]


def test_signals_still_reach_the_program(mixture):
    assert run(mixture, "os.kill(os.getpid(), signal.SIGTERM)").returncode == -signal.SIGTERM
