"""Free memory: of the machine and of control groups, made up and real."""

import subprocess
import sys

import pytest

from headrace.engine import control_group, memory
from headrace.errors import UsageError
from tests.memory_group import memory_group

GIB = 1 << 30


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A made-up machine of 64 GiB, 40 free; tells where its control groups lie."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\nMemAvailable: {40 << 20} kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    monkeypatch.setattr(control_group, "_ROOT", tmp_path / "groups")
    monkeypatch.setattr(control_group, "_PROC", tmp_path / "proc")
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
    assert memory.available_memory() == 40 * GIB
    assert memory.allowed_memory() == 64 * GIB


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_counts_and_its_page_cache_is_free(system, version):
    line = "0::/job/step" if version == 2 else "4:memory:/job/step"
    (system / "proc" / "self" / "cgroup").write_text(line + "\n")
    root = system / "groups" if version == 2 else system / "groups" / "memory"
    group(root / "job/step", version=version, limit=8 * GIB, used=5 * GIB, cache=(GIB, GIB))
    assert memory.available_memory() == 5 * GIB
    assert memory.allowed_memory() == 8 * GIB


@pytest.mark.parametrize("version", [1, 2])
def test_a_tighter_group_above_counts(system, version):
    line = "0::/job/step" if version == 2 else "4:cpu,memory:/job/step"
    (system / "proc" / "self" / "cgroup").write_text(line + "\n")
    root = system / "groups" if version == 2 else system / "groups" / "memory"
    group(root / "job/step", version=version, limit=8 * GIB, used=GIB)
    group(root / "job", version=version, limit=4 * GIB, used=3 * GIB)
    assert memory.available_memory() == GIB
    assert memory.allowed_memory() == 4 * GIB


def test_in_a_container_the_root_is_its_group(system):
    (system / "proc" / "self" / "cgroup").write_text("4:memory:/docker/0123\n")
    group(system / "groups" / "memory", version=1, limit=2 * GIB, used=GIB)
    assert memory.available_memory() == GIB


def test_a_group_that_holds_more_than_its_limit_has_nothing_left(system):
    (system / "proc" / "self" / "cgroup").write_text("0::/job\n")
    group(system / "groups" / "job", version=2, limit=GIB, used=2 * GIB)
    assert memory.available_memory() == 0


def test_a_group_without_a_limit_leaves_it_to_the_machine(system):
    (system / "proc" / "self" / "cgroup").write_text("0::/job\n9:pids:/elsewhere\n")
    group(system / "groups" / "job", version=2, limit="max", used=2 * GIB)
    assert memory.available_memory() == 40 * GIB


def test_a_real_group_is_seen():
    code = (
        "from headrace.engine.memory import allowed_memory, available_memory\n"
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
