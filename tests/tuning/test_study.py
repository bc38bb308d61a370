"""Studies that really run: rows, resume, locks, full disks, and what is written."""

import argparse
import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import study as study_command
from headrace.cli.main import main
from headrace.engine.machine import descendants
from headrace.files import locked
from headrace.measure import theme
from headrace.testing import synthesize
from headrace.tuning.study import read_study, run_study
from headrace.tuning.study.ledger import Ledger
from headrace.tuning.study.trial import Attempt, Guard, Trial
from tests.tuning.test_study_trial import gone, wait_until

#: A program that counts how often it was started, with a rate that its argument says.
COUNTING = """\
import json, os, sys
with open(os.environ["COUNTS"], "a") as file:
    file.write(sys.argv[1] + "\\n")
run = os.environ["HEADRACE_RUN"]
json.dump({"samples_per_s": float(sys.argv[1])}, open(run + "/result.json", "w"))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    synthesize(root, only=["kuka"], episodes=3, seed=1, _max_steps=9)
    return root


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to work in, with the counting program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COUNTS", str(tmp_path / "counts"))
    (tmp_path / "count.py").write_text(COUNTING)
    return tmp_path


def counting(rate):
    return [sys.executable, "count.py", str(rate)]


def write_study(folder, runs, **more):
    values = {"repeats": 2, "guard": {"min_available": 0}, "runs": runs, **more}
    path = folder / "s.yaml"
    path.write_text(json.dumps(values))  # JSON is YAML
    return str(path)


def start_study(path, **options):
    command = [sys.executable, "-m", "headrace", "study", path]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, **options)


def read_rows(folder):
    with (folder / "results.csv").open() as file:
        return {row["label"]: row for row in csv.DictReader(file)}


def test_a_study_of_benchmarks_writes_its_table_log_plots_and_decision(
    data, here, capsys, monkeypatch
):
    monkeypatch.setenv("SLURM_JOB_ID", "5477781")
    (here / "m.yaml").write_text(f"root: {data}\nsources: [{{name: kuka, offset: 2}}]")
    values = {
        "about": "a small | one",
        "mixture": "m.yaml",
        "overrides": ["loader.batch_size=8", "loader.image_size=32", "loader.keep_free=0"],
        "steps": 8,
        "warmup": 2,
        "warmup_seconds": 0,
        "repeats": 2,
        "guard": {"min_available": 0},
        "ladder": [
            {"label": "batch 4", "change": "loader.batch_size=4"},
            {"label": "typo", "change": "loader.batchsize=4"},
            {"label": "too small", "change": "loader.memory=1kB"},
            {"label": "many CPUs", "change": "bench.cpus=4096"},
        ],
    }
    (here / "s.yaml").write_text(json.dumps(values))
    assert main(["study", "s.yaml", "--json", "out.json"]) == 1
    shown = capsys.readouterr().out
    folder = here / "studies" / "s"
    rows = read_rows(folder)
    assert [(label, row["status"], row["rounds"]) for label, row in rows.items()] == [
        ("baseline", "complete", "2"),
        ("batch 4", "complete", "2"),
        ("typo", "invalid configuration", "1"),
        ("too small", "invalid configuration", "1"),
        ("many CPUs", "skipped", "1"),
    ]
    assert float(rows["batch 4"]["samples_per_s"]) > 0
    assert rows["batch 4"]["against"] == "baseline"
    assert (rows["batch 4"]["batches"], rows["batch 4"]["job_ids"]) == ("8.0", "5477781")
    assert rows["batch 4"]["dates"][:2] == "20"
    assert rows["typo"]["dates"] == rows["typo"]["job_ids"] == ""
    assert "does not hold two batches" in rows["too small"]["notes"]
    assert json.loads((here / "out.json").read_text())["decision"]["baseline"] == "baseline"
    log = (folder / "log.md").read_text()
    table = [line for line in log.splitlines() if line.startswith("| ")]
    columns = "label|changed|status|samples/s|p99|loader share|peak memory|min available|wall"
    assert all(name in table[0] for name in [*columns.split("|"), "run folder", "notes"])
    assert len({line.replace("\\|", "").count("|") for line in table[:6]}) == 1
    assert "## Decision" in log
    assert "5477781" in next(line for line in table if "](runs/" in line)
    for name in ("throughput", "peak_memory"):
        assert (folder / "plots" / f"{name}.svg").read_text().startswith("<?xml")
    assert "batch 4, round 2 of 2: complete" in shown
    assert "many CPUs: needs 4096 CPUs" in shown
    # The same command again: nothing is run twice, and the invalid row did not run at all.
    runs = sorted(p.name for p in (folder / "runs").iterdir())
    assert len(runs) == 5
    assert main(["study", "s.yaml"]) == 1
    assert "nothing left to run" in capsys.readouterr().out
    assert sorted(p.name for p in (folder / "runs").iterdir()) == runs


def test_rows_of_programs_are_compared_and_decided(here, capsys):
    path = write_study(
        here,
        [
            {"label": "slow", "command": counting(100)},
            {"label": "fast", "command": counting(150)},
            {"label": "broken", "command": "echo went wrong; exit 7"},
        ],
    )
    assert main(["study", path, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in found["rows"]] == ["complete", "complete", "failed"]
    assert "7" in found["rows"][2]["cause"]
    assert "went wrong" in found["rows"][2]["cause"]
    assert len(found["rows"][2]["rounds"]) == 1  # it is not tried again
    assert (found["decision"]["best"], found["decision"]["contrast"]["ratio"]) == ("fast", 1.5)
    assert found["rows"][1]["contrast"]["against"] == "slow"
    assert (here / "counts").read_text().split() == ["100", "150", "150", "100"]  # in turns


def test_a_study_that_is_killed_resumes_without_repeating_what_was_finished(here):
    path = write_study(
        here,
        [
            {"label": "a", "command": counting(100)},
            {
                "label": "b",
                "command": f"touch begun; test -e go || sleep 600; {' '.join(counting(110))}",
            },
        ],
        repeats=1,
    )
    folder = here / "studies" / "s"
    process = start_study(path)
    try:
        # The study knows what it has started once the note of the run is there.
        wait_until(lambda: (here / "begun").exists() and list(folder.glob("runs/*_b/process")))
        left = descendants(process.pid)[1:]
    finally:
        process.kill()
        process.wait()
    assert left
    with (folder / "ledger.jsonl").open("ab") as file:
        file.write(b'{"half a li')
    (here / "go").touch()
    assert main(["study", path]) == 0
    # What the killed study had left running was ended first; the kernel may take its time.
    wait_until(lambda: all(map(gone, left)))
    assert (here / "counts").read_text().split() == ["100", "110"]
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["label"] for line in lines] == ["a", "b"]


def test_an_interrupted_study_says_how_to_resume(here):
    path = write_study(here, [{"label": "a", "command": "touch begun; sleep 600"}], repeats=1)
    process = start_study(path, stderr=subprocess.PIPE, text=True)
    try:
        wait_until((here / "begun").exists)
        left = descendants(process.pid)[1:]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 130
    assert f"headrace study {path}" in errors
    wait_until(lambda: all(map(gone, left)))
    assert read_rows(here / "studies" / "s")["a"]["status"] == "interrupted"


def test_again_forgets_what_was_finished(here):
    path = write_study(here, [{"label": "a", "command": counting(1)}], repeats=1)
    for arguments in ([], [], ["--again"]):
        assert main(["study", path, *arguments]) == 0
    assert (here / "counts").read_text().split() == ["1", "1"]


def test_only_some_rows_can_be_run_and_a_wrong_name_is_answered(here, capsys):
    path = write_study(
        here, [{"label": name, "command": counting(n)} for n, name in enumerate("abc", 1)]
    )
    assert main(["study", path, "--row", "c", "--repeats", "1"]) == 0
    assert (here / "counts").read_text().split() == ["1", "3"]
    assert main(["study", path, "--row", "d"]) == 2
    assert "Rows: a, b, c" in capsys.readouterr().err


def test_a_second_study_in_the_same_folder_says_who_is_there(here, capsys):
    path = write_study(here, [{"label": "a", "command": counting(1)}])
    folder = here / "studies" / "s"
    folder.mkdir(parents=True)
    with locked(folder / "study.lock"):
        assert main(["study", path]) == 2
    said = capsys.readouterr().err
    assert "studies/s" in said
    assert f"process {os.getpid()}" in said
    assert not (here / "counts").exists()


def test_a_floor_above_the_machine_s_memory_is_refused_before_anything_runs(here, capsys):
    path = write_study(here, [{"label": "a", "command": counting(1)}])
    assert main(["study", path, "--floor", "9999GiB"]) == 2
    assert "guard.min_available is 9999.00 GiB, but only" in capsys.readouterr().err
    assert not (here / "studies").exists()


def test_a_wrong_study_file_is_one_line_with_the_key(here, capsys):
    path = write_study(here, [{"lable": "a", "command": "true"}])
    assert main(["study", path]) == 2
    assert "unknown key runs[0].lable [file" in capsys.readouterr().err


def test_without_matplotlib_a_study_runs_and_says_how_to_get_the_plots(here, monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        theme, "find_spec", lambda name: None if name == "matplotlib" else real(name)
    )
    path = write_study(here, [{"label": "a", "command": counting(1)}], repeats=1)
    assert main(["study", path]) == 0
    assert "headrace[plots]" in capsys.readouterr().out
    assert not (here / "studies" / "s" / "plots").exists()


def test_a_study_can_be_run_from_python(here):
    path = write_study(here, [{"label": "a", "command": counting(1)}], repeats=2)
    titles = []
    found = run_study(read_study(path), here / "s", tell=lambda title, _: titles.append(title))
    assert (found.made, found.interrupted, found.rows[0].rate) == (2, False, 1.0)
    assert titles == ["a, round 1 of 2", "a, round 2 of 2"]
    assert run_study(read_study(path), here / "s").made == 0


@pytest.mark.parametrize(
    ("options", "length"),
    [([], (160, 120)), (["--steps", "3"], (3, None)), (["--seconds", "2"], (None, 2))],
)
def test_the_command_line_may_say_how_long_runs_are(options, length):
    parser = argparse.ArgumentParser()
    study_command.add_arguments(parser)
    study = study_command._study(parser.parse_args(["metadata", *options]))
    assert (study.steps, study.seconds) == length


def test_the_packaged_studies_are_listed(capsys):
    assert main(["study", "--list"]) == 0
    assert "param_ladder" in capsys.readouterr().out


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 200 kB, where one can be mounted."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_names_the_file_and_the_study_resumes_later(here, small_disk, capsys):
    fill = f"head -c 1000000 /dev/zero > {small_disk}/filler; true"
    path = write_study(
        here,
        [
            {"label": "a", "command": counting(1)},
            {"label": "b", "command": f"{' '.join(counting(2))}; test -e go || ({fill})"},
            {"label": "c", "command": counting(3)},
        ],
        repeats=1,
    )
    out = small_disk / "out"
    assert main(["study", path, "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert str(out) in said
    assert "No space left on device" in said
    lines = (out / "ledger.jsonl").read_text().splitlines()
    kept = [json.loads(line)["label"] for line in lines]
    assert kept in (["a"], ["a", "b"])  # the ledger's own block may have room for one more
    assert [p.name for p in out.rglob("*.tmp*")] == []  # nothing half written
    assert read_rows(out)["a"]["status"] == "complete"
    (small_disk / "filler").unlink()
    (here / "go").touch()
    assert main(["study", path, "--out", str(out)]) == 0
    assert (here / "counts").read_text().split() == ["1", *"2" * (3 - len(kept)), "3"]
    assert [row["status"] for row in read_rows(out).values()] == ["complete"] * 3


# -- parts ---------------------------------------------------------------------------------------


def test_the_ledger_knows_what_still_holds_under_another_guard(tmp_path):
    trial = Trial("a", backend="command", command="true")
    strict, loose = Guard(min_available=100 << 20), Guard(min_available=1 << 20)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add(trial, 0, loose, Attempt("complete", min_available_mb=50.0))
    ledger.add(trial, 1, loose, Attempt("floor reached", "low"))
    ledger.add(trial, 2, loose, Attempt("interrupted"))
    again = Ledger(tmp_path / "ledger.jsonl")
    assert len(again) == 2
    assert again.find(trial, 0, loose).status == "complete"
    assert again.find(trial, 0, strict) is None  # it would not have kept this floor
    assert again.find(trial, 1, loose).status == "floor reached"
    assert again.find(trial, 1, strict) is None
    assert again.find(trial, 2, loose) is None
    other = Trial("a", backend="command", command="false")
    assert again.find(other, 0, loose) is None


def test_a_damaged_line_of_the_ledger_is_skipped_and_said_once(tmp_path, caplog):
    trial, guard, path = (
        Trial("a", backend="command", command="true"),
        Guard(),
        tmp_path / "l.jsonl",
    )
    for number in range(3):
        Ledger(path).add(trial, number, guard, Attempt("complete", min_available_mb=1e6))
    assert not caplog.records
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:40] + "\n" + lines[2])
    ledger = Ledger(path)
    assert [ledger.find(trial, n, guard) is not None for n in range(3)] == [True, False, True]
    (said,) = [record.getMessage() for record in caplog.records]
    assert "l.jsonl" in said


def test_a_backend_that_is_not_installed_is_a_row_with_the_command(here, data, monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "headrace.measure.baselines.baseline.find_spec",
        lambda name: None if name == "tensorflow" else real(name),
    )
    (here / "m.yaml").write_text(f"root: {data}\nsources: [{{name: kuka, offset: 2}}]")
    path = write_study(
        here,
        [{"label": "tf", "backend": "tfdata"}, {"label": "a", "command": counting(5)}],
        mixture="m.yaml",
    )
    assert main(["study", path]) == 0
    rows = read_rows(here / "studies" / "s")
    assert rows["tf"]["status"] == "not installed"
    assert "pip install 'headrace[tf]'" in rows["tf"]["notes"]
    assert rows["a"]["status"] == "complete"


def test_a_results_folder_that_is_a_file_is_refused(here, capsys):
    path = write_study(here, [{"label": "a", "command": counting(1)}])
    Path("file").touch()
    assert main(["study", path, "--out", "file"]) == 2
    assert "--out" in capsys.readouterr().err
