"""CPUs and memory: of the machine and of control groups, made up and real."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from headrace.engine import machine
from headrace.errors import UsageError
from tests.memory_group import memory_group

GIB = 1 << 30


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A made-up machine of 64 GiB, 40 free; tells where its control groups lie."""
    sizes = SimpleNamespace(total=64 * GIB, available=40 * GIB)
    monkeypatch.setattr(machine, "_memory", lambda: sizes)
    monkeypatch.setattr(machine, "_ROOT", tmp_path / "groups")
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    (tmp_path / "proc" / "self").mkdir(parents=True)
    return tmp_path


def group(folder, *, version, limit, used, cache=(0, 0)):
    folder.mkdir(parents=True, exist_ok=True)
    inactive, active = cache
    if version == 2:
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        prefix = ""
    else:
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
        prefix = "total_"
    stat = f"anon 5\n{prefix}inactive_file {inactive}\n{prefix}active_file {active}\n"
    (folder / "memory.stat").write_text(stat)


def test_without_control_groups_the_machine_counts(system):
    assert machine.available_memory() == 40 * GIB
    assert machine.allowed_memory() == 64 * GIB


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_counts_and_its_page_cache_is_free(system, version):
    line = "0::/job/step" if version == 2 else "4:memory:/job/step"
    (system / "proc" / "self" / "cgroup").write_text(line + "\n")
    root = system / "groups" if version == 2 else system / "groups" / "memory"
    group(root / "job/step", version=version, limit=8 * GIB, used=5 * GIB, cache=(GIB, GIB))
    assert machine.available_memory() == 5 * GIB
    assert machine.allowed_memory() == 8 * GIB


@pytest.mark.parametrize("version", [1, 2])
def test_a_tighter_group_above_counts(system, version):
    line = "0::/job/step" if version == 2 else "4:cpu,memory:/job/step"
    (system / "proc" / "self" / "cgroup").write_text(line + "\n")
    root = system / "groups" if version == 2 else system / "groups" / "memory"
    group(root / "job/step", version=version, limit=8 * GIB, used=GIB)
    group(root / "job", version=version, limit=4 * GIB, used=3 * GIB)
    assert machine.available_memory() == GIB
    assert machine.allowed_memory() == 4 * GIB


def test_in_a_container_the_root_is_its_group(system):
    (system / "proc" / "self" / "cgroup").write_text("4:memory:/docker/0123\n")
    group(system / "groups" / "memory", version=1, limit=2 * GIB, used=GIB)
    assert machine.available_memory() == GIB


def test_a_group_that_holds_more_than_its_limit_has_nothing_left(system):
    (system / "proc" / "self" / "cgroup").write_text("0::/job\n")
    group(system / "groups" / "job", version=2, limit=GIB, used=2 * GIB)
    assert machine.available_memory() == 0


def test_a_group_without_a_limit_leaves_it_to_the_machine(system):
    (system / "proc" / "self" / "cgroup").write_text("0::/job\n9:pids:/elsewhere\n")
    group(system / "groups" / "job", version=2, limit="max", used=2 * GIB)
    assert machine.available_memory() == 40 * GIB


def test_a_real_group_is_seen():
    code = (
        "from headrace.engine.machine import allowed_memory, available_memory\n"
        "before = available_memory()\n"
        "taken = bytearray(64 << 20)\n"
        "print(allowed_memory(), before, available_memory())"
    )
    try:
        with memory_group(256 << 20) as limited:
            done = subprocess.run(
                limited.command(sys.executable, "-c", code), capture_output=True, text=True
            )
    except UsageError as error:
        pytest.skip(str(error))
    allowed, before, after = map(int, done.stdout.split())
    assert allowed == 256 << 20
    assert after <= before - (60 << 20)
    assert before < 256 << 20


@pytest.mark.parametrize("version", [1, 2])
def test_a_quota_of_cpus_counts_also_that_of_a_group_above(system, monkeypatch, version):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)))
    line = "0::/job/step" if version == 2 else "4:cpu,cpuacct:/job/step"
    (system / "proc" / "self" / "cgroup").write_text(line + "\n")
    folder = system / "groups" / ("job" if version == 2 else "cpu/job")
    (folder / "step").mkdir(parents=True)
    assert machine.allowed_cpus() == 8
    if version == 2:
        (folder / "step" / "cpu.max").write_text("max 100000\n")
        (folder / "cpu.max").write_text("250000 100000\n")
    else:
        (folder / "step" / "cpu.cfs_quota_us").write_text("-1\n")
        (folder / "step" / "cpu.cfs_period_us").write_text("100000\n")
        (folder / "cpu.cfs_quota_us").write_text("250000\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert machine.allowed_cpus() == 2


def test_the_affinity_of_the_process_counts():
    first = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, [{first}])\n"
        "from headrace.engine.machine import allowed_cpus; print(allowed_cpus())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 1


#: Counts page faults of arrays that are made again and again.
FAULTS = """
import json, resource
import numpy as np
from headrace.engine.machine import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        arrays = [np.ones(3 << 16) for _ in range(16)]  # 1.5 MiB each
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
kept = keep_freed_memory()
faults()
print(json.dumps([kept, first, faults()]))
"""


def test_arrays_are_made_again_and_again_without_new_pages():
    ran = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    kept, before, after = json.loads(ran.stdout)
    if not kept:
        pytest.skip("this malloc cannot be told")
    assert after < before / 10


@pytest.fixture
def launched(monkeypatch):
    """Sets affinity (this process's and its launcher's) and environment; the CPUs of a rank."""

    def cpus(bound, launcher, **environment):
        masks = {0: set(range(bound)), os.getppid(): set(range(launcher))}
        monkeypatch.setattr(machine.os, "sched_getaffinity", masks.__getitem__)
        monkeypatch.setattr(machine, "_cpu_quota", lambda: int(environment.pop("quota", 1 << 62)))
        for key in ("LOCAL_WORLD_SIZE", "LOCAL_RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
            monkeypatch.delenv(key, raising=False)
        for key in [key for key in os.environ if key.startswith("SLURM_")]:
            monkeypatch.delenv(key)
        for key, value in environment.items():
            monkeypatch.setenv(key, str(value))
        return machine.allowed_cpus()

    return cpus


STEP = {"SLURM_STEP_ID": 0, "SLURM_PROCID": 5, "SLURM_STEP_NUM_TASKS": 7, "SLURM_NODEID": 1}


@pytest.mark.parametrize(
    ("bound", "launcher", "environment", "expected"),
    [
        (32, 32, {}, 32),
        (32, 32, {"LOCAL_WORLD_SIZE": 4}, 8),  # torchrun
        (8, 32, {"LOCAL_WORLD_SIZE": 4}, 8),  # each rank bound to its CPUs
        (16, 16, {"LOCAL_WORLD_SIZE": 4}, 4),  # the launcher itself is bound
        (32, 32, {"LOCAL_WORLD_SIZE": 4, "quota": 16}, 4),
        (2, 2, {"LOCAL_WORLD_SIZE": 8}, 1),
        (32, 32, {"LOCAL_RANK": 1, "WORLD_SIZE": 2}, 16),  # Lightning's own processes
        (32, 32, {"OMPI_COMM_WORLD_LOCAL_SIZE": 2}, 16),
        (64, 64, {**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}, 32),
        (64, 64, {**STEP, "SLURM_STEP_TASKS_PER_NODE": "4,1", "SLURM_NODEID": 1}, 64),
        (16, 64, {**STEP, "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_CPUS_ON_NODE": 16}, 4),
        (4, 64, {**STEP, "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_CPUS_ON_NODE": 16}, 4),
        (16, 16, {**STEP, "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "LOCAL_WORLD_SIZE": 4}, 4),
        (32, 32, {"SLURM_NTASKS": 4, "SLURM_PROCID": 0, "SLURM_TASKS_PER_NODE": "4"}, 32),
    ],
)
def test_ranks_of_a_node_share_its_cpus(launched, bound, launcher, environment, expected):
    assert launched(bound, launcher, **environment) == expected


def test_work_for_all_ranks_has_all_cpus(launched):
    launched(32, 32, LOCAL_WORLD_SIZE=4)
    assert machine.allowed_cpus(whole_node=True) == 32
