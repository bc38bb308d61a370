"""The scripts of docs/guides/grain.md run as they stand there, on less data."""

import re
import sys
from pathlib import Path

import pytest

from headrace.testing import synthesize_network

pytest.importorskip("grain")

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "grain.md"
SCRIPTS = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", GUIDE.read_text(), re.S))

pytestmark = pytest.mark.filterwarnings("default")  # what Grain warns of is its own


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Runs a script of the guide and gives the lines it printed."""
    synthesize_network(tmp_path / "measurements", rows=256, files={"train": 4, "test": 1})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("my_windows.py").write_text(SCRIPTS["my_windows"])
    monkeypatch.delitem(sys.modules, "my_windows", raising=False)

    def run(name):
        code = SCRIPTS[name].replace("256", "4").replace("128", "2")
        capfd.readouterr()
        # Nothing is left of a script that has ended, so Grain's arrays go.
        exec(compile(code, f"{name}.py", "exec"), {"__name__": "__main__"})
        return capfd.readouterr().out.splitlines()

    return run


def test_the_loader_and_grain_print_the_same_and_resume_on_other_hosts(run):
    first = run("plain")
    assert [line.partition(" int32")[0] for line in first[:3]] == ["(4, 1024)"] * 3
    assert first[3].endswith("12")
    assert run("threads") == first[:3]
    workers = run("workers")
    assert workers[:3] == first[:3]
    after = workers[3].split()[-1]
    assert [line.split()[-1] for line in run("resume")] == [after] * 3


def test_an_evaluation_has_every_window_and_padding(run):
    assert run("evaluation") == ["(512, 1024) 4"]


def test_the_mistake_is_the_one_that_is_explained_and_the_way_by_hand_works(run):
    assert run("by_hand") == [
        "'BatchMapDataset' object has no attribute 'mp_prefetch'",
        "PrefetchIterDataset (4, 1024)",
    ]


def test_tables_of_ones_own_come_alike_with_grain_and_without(run):
    assert run("windows") == ["16 (64,) float64"]
    assert run("many") == ["(4, 64)"]
    assert run("returning") == ["(4, 64, 2)"]
    lines = run("own")
    assert len(lines) == 4
    assert lines[:2] == lines[2:]


def test_every_script_of_the_guide_is_run_here():
    assert set(SCRIPTS) == {
        "plain", "threads", "workers", "resume", "by_hand", "windows", "my_windows", "many", "own",
        "evaluation", "returning",
    }  # fmt: skip
