"""The machine and process trees."""

import json
import os
import subprocess
import sys

from headrace.measure.machine import (
    MemoryWatch,
    descendants,
    machine_facts,
    tree_cpu_seconds,
    tree_memory,
    tree_read_bytes,
)


def test_memory_and_time_of_children_are_counted():
    code = "x = bytearray(60_000_000); sum(range(3_000_000)); print('ready', flush=True); input()"
    before, cpu = tree_memory(os.getpid()), tree_cpu_seconds(os.getpid())
    watch = MemoryWatch(os.getpid())
    watch.now()
    watch._next = float("inf")  # from here on only what has changed is counted
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"ready\n"
        after, watched = tree_memory(os.getpid()), watch.now()
        assert child.pid in descendants(os.getpid())
        assert tree_cpu_seconds(os.getpid()) > cpu
        child.stdin.close()
    assert after.anonymous - before.anonymous > 55_000_000
    assert abs(watched.anonymous - after.anonymous) < 10_000_000
    assert after.rss >= after.anonymous


def test_the_machine_s_facts_are_json(tmp_path):
    facts = json.loads(json.dumps(machine_facts(tmp_path)))
    assert facts["cores_allowed"] >= 1
    assert facts["versions"]["numpy"]
    assert facts["disk"]["free_bytes"] > 0


def test_what_a_process_reads_is_counted(tmp_path):
    (tmp_path / "x").write_bytes(bytes(3_000_000))
    before = tree_read_bytes(os.getpid())
    (tmp_path / "x").read_bytes()
    assert tree_read_bytes(os.getpid()) - before >= 3_000_000


def test_a_process_that_has_ended_takes_nothing():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert (tree_memory(child.pid).rss, tree_cpu_seconds(child.pid)) == (0, 0.0)
    assert MemoryWatch(child.pid).now().rss == 0
