"""Threads that pass their work on to processes: the same bytes, and every way a process can end."""

import gc
import itertools
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.engine import workers as workers_module
from headrace.engine.slots import ArraySpec, SharedMemory, Slot, map_region, slot_views
from headrace.engine.workers import PROCESS_BYTES, receive, send
from headrace.errors import ImageError, WorkerError
from headrace.loader.loader import feed_of
from headrace.reading.local import LocalFiles
from tests.loader.conftest import NAMES, make_mixture, spoil_frame
from tests.loader.test_faults import headrace_threads
from tests.row_files import write_set


@pytest.fixture
def at_once(monkeypatch):
    """Threads start their processes with their first task."""
    monkeypatch.setattr(workers_module, "START_AFTER", 0.0)


def everything(batch):
    arrays = [batch.frames, batch.dataset, batch.episode_id, batch.frame_idx, batch.offset]
    arrays += [batch.action, batch.state, batch.draws]
    return b"".join(a.tobytes() for a in arrays), tuple(batch.language), tuple(batch.robot)


def with_processes(loader):
    """Take batches until every thread has its process; the batches."""
    found, deadline = [], time.monotonic() + 120
    while len(loader.statistics().engine.processes) < feed_of(loader).sizes.threads:
        assert time.monotonic() < deadline, "the processes did not start"
        found.append(everything(next(loader)))
    return found


def take(loader, count):
    for _ in range(count):
        next(loader)


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_processes_give_the_same_bytes_as_threads(mixture, loaders, at_once, threads):
    with_them = loaders(mixture, workers=threads)
    found = with_processes(with_them)
    found += [everything(batch) for batch in islice(with_them, 40)]
    without = loaders(mixture, workers=0)
    assert found == [everything(batch) for batch in islice(without, len(found))]
    assert without.statistics().engine.processes == ()


def test_validation_and_resuming_are_the_same_with_processes(mixture, loaders, at_once):
    loader = loaders(mixture)
    with_processes(loader)
    state = loader.state_dict()
    ahead = [everything(batch) for batch in islice(loader, 6)]
    validated = [everything(batch) for batch in loader.validation()]
    loader.load_state_dict(state)
    assert [everything(batch) for batch in islice(loader, 6)] == ahead
    plain = loaders(mixture, workers=0)
    assert validated == [everything(batch) for batch in plain.validation()]


@pytest.mark.parametrize("workers", [0, 2])
def test_spans_say_what_each_worker_did_when(mixture, loaders, at_once, workers):
    loader = loaders(mixture, workers=workers)
    feed = feed_of(loader)
    if workers:
        with_processes(loader)
    take(loader, 3)
    begun = time.perf_counter()
    assert not any(feed.record_spans(True))  # none before they are asked for
    take(loader, 30)
    found = [spans for spans in feed.record_spans(False) if spans]
    ended = time.perf_counter()
    stages = {stage for spans in found for stage, _, _ in spans}
    assert {"wait", "read", "decode", "resize", "fields"} <= stages
    for spans in found:
        times = sorted((start, end) for _, start, end in spans)
        # The first may have begun before, and none overlaps with the next of the same worker.
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(times))
        assert begun <= times[0][1]
        assert times[-1][1] <= ended
    take(loader, 3)
    assert not any(feed.record_spans(False))


def test_statistics_count_what_processes_do(mixture, loaders, at_once):
    loader = loaders(mixture, workers=1)
    with_processes(loader)
    before = loader.statistics().engine
    take(loader, 50)
    after = loader.statistics().engine
    assert after.images - before.images >= 2 * 4 * 40
    assert after.bytes_read > before.bytes_read
    busy = {stage.name: stage.busy_s for stage in after.stages}
    assert all(busy[stage.name] > stage.busy_s for stage in before.stages)


def test_few_batches_start_no_process(mixture, loaders):
    loader = loaders(mixture)
    next(loader)
    assert loader.statistics().engine.processes == ()
    assert not children(os.getpid())


def children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in found if b"engine.workers" in command(child)]


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_closing_ends_the_processes(mixture, loaders, at_once):
    loader = loaders(mixture)
    with_processes(loader)
    pids = loader.statistics().engine.processes
    loader.close()
    assert not any(running(pid) for pid in pids)
    assert headrace_threads() == []


def test_a_process_that_does_not_answer_is_cut_off_by_closing(mixture, loaders, at_once):
    loader = loaders(mixture)
    with_processes(loader)
    pids = loader.statistics().engine.processes
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    loader.close()
    assert headrace_threads() == []
    assert not any(running(pid) for pid in pids)


def test_an_abandoned_loader_ends_its_processes(mixture, at_once):
    loader = hr.Loader(mixture, batch_size=4, image_size=32, keep_free=0, workers=2)
    with_processes(loader)
    pids = loader.statistics().engine.processes
    del loader
    gc.collect()
    assert not any(running(pid) for pid in pids)


def until_all_work(loader, found):
    """As `with_processes`, after something happened to the processes."""
    found += [everything(batch) for batch in islice(loader, 20)]  # their threads have noticed
    found += with_processes(loader)


def assert_undisturbed(found, loaders, mixture):
    plain = loaders(mixture, workers=0)
    assert found == [everything(batch) for batch in islice(plain, len(found))]


def test_a_process_that_is_killed_again_and_again_is_given_up(
    mixture, loaders, at_once, caplog, monkeypatch
):
    monkeypatch.setattr(workers_module, "REPLACEMENTS", 1)
    loader = loaders(mixture, workers=1)
    found = with_processes(loader)
    for _ in range(2):
        until_all_work(loader, found)
        os.kill(*loader.statistics().engine.processes, signal.SIGKILL)
    found += [everything(batch) for batch in islice(loader, 30)]
    assert loader.statistics().engine.processes == ()
    assert "without it" in caplog.text
    assert_undisturbed(found, loaders, mixture)


def test_500_batches_come_through_killed_and_stopped_workers(
    mixture, loaders, at_once, caplog, monkeypatch
):
    loader = loaders(mixture)
    found = with_processes(loader)
    before = loader.statistics().engine.processes
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        for pid in before:  # as Slurm does: for the program, which decides
            os.kill(pid, number)
    found += [everything(batch) for batch in islice(loader, 40)]
    assert loader.statistics().engine.processes == before
    assert "worker" not in caplog.text
    killed, stopped = before
    monkeypatch.setattr(workers_module, "SILENT_SECONDS", 1.0)
    os.kill(killed, signal.SIGKILL)
    os.kill(stopped, signal.SIGSTOP)
    until_all_work(loader, found)
    found += [everything(batch) for batch in islice(loader, max(0, 500 - len(found)))]
    after = loader.statistics().engine.processes
    assert len(after) == 2
    assert not set(before) & set(after)
    assert f"worker process {killed} died (signal 9" in caplog.text
    named = f"worker process {stopped} has not answered"
    (told,) = [text for text in caplog.messages if text.startswith(named)]
    assert all(word in told for word in ("dataset ", "file ", "offset ", "ended"))
    assert_undisturbed(found, loaders, mixture)


class Unresponsive(LocalFiles):
    """Files of a server that does not answer until it is told to."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()

    def read_into(self, fd, path, offset, into):
        self.gate.wait()
        super().read_into(fd, path, offset, into)


def test_storage_that_does_not_answer_ends_the_run_with_its_name(
    mixture, loaders, caplog, monkeypatch
):
    monkeypatch.setattr(workers_module, "SILENT_SECONDS", 0.3)
    monkeypatch.setattr(workers_module, "GIVE_UP_SECONDS", 1.0)
    files = Unresponsive()
    loader = loaders(mixture, files=files, workers=0)
    for _ in range(2):  # still
        with pytest.raises(WorkerError) as caught:
            next(loader)
    files.gate.set()
    assert caught.value.dataset in NAMES
    assert Path(caught.value.file).exists()
    assert caught.value.offset > 0
    assert "not answered" in caplog.text


def test_rows_of_a_process_that_cannot_be_ended_are_not_given_to_another(
    mixture, loaders, at_once, monkeypatch
):
    monkeypatch.setattr(workers_module, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(workers_module, "GIVE_UP_SECONDS", 3.0)
    loader = loaders(mixture, workers=2)
    found = with_processes(loader)
    state = loader.state_dict()
    pid, _ = loader.statistics().engine.processes
    with monkeypatch.context() as patched:  # as in an uninterruptible read
        patched.setattr(workers_module._Process, "kill", lambda self: None)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(WorkerError, match=str(pid)):
            for _ in range(80):
                state = loader.state_dict()
                found.append(everything(next(loader)))
    slots = feed_of(loader)._stream.pool
    assert slots.out > 0  # what it was writing to
    os.kill(pid, signal.SIGCONT)  # the storage answers
    loader.load_state_dict(state)
    found += [everything(batch) for batch in islice(loader, 30)]
    assert_undisturbed(found, loaders, mixture)


def test_a_worker_that_computes_for_long_is_named_and_left_alone(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(workers_module, "SILENT_SECONDS", 0.3)
    seconds = [1.5]

    def compute(rows, out, draw):
        until = time.thread_time() + (seconds.pop() if seconds else 0)
        while time.thread_time() < until:
            pass

    transform = hr.RowTransform(compute, outputs={"x": ((), "int64")})
    rows = hr.RowSet(write_set(tmp_path), columns=["number"], window=8)
    with hr.RowLoader(rows, transform=transform, batch_size=2, workers=0, keep_free=0) as loader:
        for _ in range(12):  # the one that takes long is among them
            next(loader)
    assert "same place" in caplog.text


def test_the_kernel_is_asked_to_kill_a_process_before_the_loader(mixture, loaders, at_once):
    loader = loaders(mixture, workers=1)
    with_processes(loader)
    (pid,) = loader.statistics().engine.processes
    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"


def test_a_crashed_process_is_an_error_that_says_what_it_was_reading(mixture, loaders, at_once):
    loader = loaders(mixture, workers=1)
    with_processes(loader)
    (pid,) = loader.statistics().engine.processes
    os.kill(pid, signal.SIGSEGV)
    with pytest.raises(WorkerError, match="signal 11") as caught:
        for _ in range(50):
            next(loader)
    assert caught.value.dataset in NAMES
    assert Path(caught.value.file).exists()
    assert "headrace verify" in str(caught.value)


def test_a_process_that_cannot_start_is_told_and_threads_go_on(
    mixture, loaders, at_once, caplog, monkeypatch, capfd
):
    monkeypatch.setattr(workers_module, "_PROGRAM", "headrace.no_such_module")
    loader = loaders(mixture, workers=1)
    deadline = time.monotonic() + 120
    while "without it" not in caplog.text:
        assert time.monotonic() < deadline
        next(loader)
    assert loader.statistics().engine.processes == ()
    assert "exit code 1" in caplog.text


def test_a_system_without_room_for_processes_is_told_and_threads_go_on(
    mixture, loaders, at_once, caplog, monkeypatch
):
    def refuse(*_arguments, **_options):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(workers_module, "start_python", refuse)
    loader = loaders(mixture)
    take(loader, 20)
    assert "could not be started" in caplog.text
    assert "Resource temporarily unavailable" in caplog.text
    assert loader.statistics().engine.processes == ()
    loader.close()
    assert loader.statistics().engine.budget.held == 0


def test_threads_that_start_processes_at_once_describe_the_loader_once(
    mixture, loaders, at_once, monkeypatch
):
    made, pickled = [], workers_module._pickled

    def slowly(work):
        time.sleep(0.2)  # all threads come here meanwhile
        made.append(work)
        return pickled(work)

    monkeypatch.setattr(workers_module, "_pickled", slowly)
    with_processes(loaders(mixture, workers=4))
    assert len(made) == 1


def test_a_damaged_frame_raises_with_its_place_from_a_process(own, loaders, at_once):
    loader = loaders(make_mixture(own, ["bridge"]), files=LocalFiles())
    with_processes(loader)
    number, t, where = spoil_frame(own)
    with pytest.raises(ImageError) as caught:
        for _ in range(80):
            next(loader)
    error = caught.value
    assert (error.dataset, error.file, error.frame) == ("bridge", where.path, t)
    assert error.offset == where.offset
    assert error.episode == hr.Catalog.open(own / "bridge" / "0.1.0").info(number).id


def test_a_damaged_frame_is_replaced_as_without_processes(own, loaders, at_once):
    mixture = make_mixture(own, ["bridge", "droid"])
    loader = loaders(mixture, files=LocalFiles(), on_error="skip")
    with_processes(loader)
    state = loader.state_dict()
    spoil_frame(own)
    plain = loaders(mixture, files=LocalFiles(), on_error="skip", workers=0)
    runs = []
    for each in (loader, plain):
        each.load_state_dict(state)
        runs.append([everything(batch) for batch in islice(each, 60)])
        assert each.statistics().skipped > 0
        assert [one.dataset for one in each.statistics().damaged] == ["bridge"]
    assert runs[0] == runs[1]
    assert len(loader.statistics().engine.processes) == 2


def test_a_budget_without_room_for_processes_has_none(mixture, loaders, at_once):
    loader = loaders(mixture, memory="40MiB")
    take(loader, 100)
    figures = loader.statistics().engine
    assert figures.processes == ()
    assert figures.budget.peak <= figures.budget.limit == 40 << 20


def test_a_budget_with_room_for_some_processes_has_these(mixture, loaders, at_once):
    loader = loaders(mixture, workers=4, memory=3 * PROCESS_BYTES)
    assert feed_of(loader).sizes.processes == 2
    while len(loader.statistics().engine.processes) < 2:
        next(loader)
    take(loader, 100)
    figures = loader.statistics().engine
    assert len(figures.processes) == 2
    assert figures.threads == 4
    assert figures.budget.peak <= figures.budget.limit


def test_processes_are_charged_to_the_budget_and_given_back(mixture, loaders, at_once):
    loader = loaders(mixture)
    with_processes(loader)
    figures = loader.statistics().engine
    assert figures.budget.held >= 2 * PROCESS_BYTES
    assert figures.budget.peak <= figures.budget.limit
    loader.close()
    assert loader.statistics().engine.budget.held == 0


def test_a_process_holds_about_what_it_is_charged(mixture, loaders, at_once):
    loader = loaders(mixture, workers=1)
    with_processes(loader)
    take(loader, 50)
    (pid,) = loader.statistics().engine.processes
    status = Path(f"/proc/{pid}/status").read_text()
    anonymous = int(status.split("RssAnon:")[1].split()[0]) << 10
    assert anonymous < 1.25 * PROCESS_BYTES


SCRIPT = """
import json, os, signal, sys, threading, time
import headrace as hr
from headrace.engine import workers
workers.START_AFTER = 0.0
mixture = hr.Mixture.from_dict(json.loads(sys.argv[1]))
options = {"batch_size": 4, "image_size": 32, "keep_free": 0, "workers": 2}
loader = hr.Loader(mixture, frames="single", **options)  # tells nothing at open
while len(loader.statistics().engine.processes) < 2:
    batch = next(loader)
print(*loader.statistics().engine.processes, flush=True)
"""


def script(mixture, rest):
    code = textwrap.dedent(SCRIPT) + textwrap.dedent(rest)
    return subprocess.run(
        [sys.executable, "-c", code, json.dumps(mixture.to_dict())],
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_the_interpreter_exits_with_processes_at_work(mixture):
    done = script(mixture, "print('end')")
    assert (done.returncode, done.stderr) == (0, "")
    pids, end = done.stdout.splitlines()
    assert end == "end"
    assert not any(running(pid) for pid in pids.split())


@pytest.mark.parametrize("stopped", [False, True])
def test_processes_end_with_a_program_that_is_killed(mixture, stopped):
    stop = "os.kill(loader.statistics().engine.processes[0], signal.SIGSTOP)\n" if stopped else ""
    done = script(mixture, stop + "os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while any(running(pid) for pid in done.stdout.split()):
        assert time.monotonic() < deadline, "a worker process outlives its program"


def test_a_forked_child_that_lets_go_of_the_loader_leaves_the_parent_s_batches_alone(mixture):
    done = script(
        mixture,
        """
        import gc
        kept = [next(loader) for _ in range(2)]
        before = [b.frames.copy() for b in kept]
        pid = os.fork()
        if pid == 0:
            del batch, kept, loader
            gc.collect()
            os._exit(0)
        os.waitpid(pid, 0)
        assert all((b.frames == f).all() for b, f in zip(kept, before))
        assert any(f.any() for f in before)
        next(loader)
        print('parent goes on')
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "parent goes on"


def test_a_catalog_crosses_into_another_process(data):
    folder = make_mixture(data).folder(make_mixture(data).active[0])
    catalog = hr.Catalog.open(folder)
    code = """
import pickle, sys
catalog = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(catalog.frame(1, 2).tobytes())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(catalog), capture_output=True, check=True
    )
    assert done.stdout == catalog.frame(1, 2).tobytes()


def test_shared_memory_is_given_back_at_once_and_its_place_used_again():
    shared = SharedMemory()
    specs = {"x": ArraySpec((1_000_000,), "uint8")}
    slot = Slot(specs, shared)
    slot.arrays()["x"][:] = 7
    other = slot_views(specs, map_region(shared.fd, slot.place, slot.nbytes))
    assert int(other["x"].sum()) == 7_000_000
    place, blocks = slot.place, os.fstat(shared.fd).st_blocks
    assert blocks * 512 >= 1_000_000
    del slot
    assert os.fstat(shared.fd).st_blocks == 0
    assert int(other["x"].sum()) == 0  # mapped still, but without memory
    again = Slot(specs, shared)
    assert again.place == place
    assert not np.any(again.arrays()["x"])


@pytest.mark.parametrize("size", [0, 65_535, 65_536, 3 << 20])
def test_messages_arrive_whole_whatever_their_size(size):
    one, other = socket.socketpair()
    with one, other:
        sender = threading.Thread(target=send, args=(one, ("words", b"x" * size)))
        sender.start()
        assert receive(other) == ("words", b"x" * size)
        sender.join()
        one.sendall(b"half")
        one.close()
        with pytest.raises(EOFError):
            receive(other)
