"""The benchmark scripts can be started: they import what the package has."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if "argparse" in path.read_text("utf-8"))
BY_MODULE = {"memory_limit"}  # it shares a module with the tests


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_says_how_it_is_used(name):
    if name.startswith("laq"):
        pytest.importorskip("torch")
    start = ["-m", f"benchmarks.{name}"] if name in BY_MODULE else [f"benchmarks/{name}.py"]
    done = subprocess.run(
        [sys.executable, *start, "--help"], cwd=FOLDER.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_a_page_of_a_study_shows_what_changed_and_keeps_its_conclusion(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import studies

    monkeypatch.setattr(studies, "DOCS", tmp_path / "docs")
    (tmp_path / "docs" / "plots").mkdir(parents=True)
    (tmp_path / "study" / "plots").mkdir(parents=True)
    (tmp_path / "study" / "plots" / "throughput.svg").write_text("<svg/>")
    log = (
        "# s\n\n- Measured: {}\n\n| label | samples/s | ratio |\n|---|---:|---:|\n{}\n## Runs\nx\n"
    )
    page = tmp_path / "docs" / "s.md"
    for measured, rows in (("6 s", "| a | 10 | - |\n"), ("160 batches", "| a \\| b | 5 | 0.5 |\n")):
        (tmp_path / "study" / "log.md").write_text(log.format(measured, rows))
        studies.publish("s", tmp_path / "study", Path("/data"), "headrace study s")
        first = page.read_text()
        page.write_text(first.replace("Not written yet.", "It is slower."))
    text = page.read_text()
    studies.publish("s", tmp_path / "study", Path("/data"), "headrace study s")
    assert page.read_text() == text
    assert "| a | 10 | - | - | - |" in text
    assert "| a \\| b | - | 5 | - | 0.5 |" in text
    assert "- Measured: 6 s" in text
    assert "It is slower.\n\n```\nheadrace study s\n```" in text
    assert "## Runs" not in text
    assert (tmp_path / "docs" / "plots" / "s_throughput.svg").exists()
