"""The commands as people and programs use them."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys

import cv2
import pytest

import headrace
import headrace as hr
from headrace.cli.main import build_parser, main, parsed
from headrace.loader.work import DamagedFrame
from headrace.measure.job import jobs_of
from headrace.measure.runs import RunWriter
from tests.catalog.test_bad_input import records, rewrite, shards
from tests.loader.conftest import spoil_frame
from tests.measure.made_runs import write_made_run
from tests.row_files import write_set


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def two(oxe, tmp_path):
    """A root with two datasets."""
    root = tmp_path / "root"
    for name in ("bridge/0.1.0", "droid/1.0.1"):
        shutil.copytree(oxe / name, root / name, ignore=shutil.ignore_patterns(".headrace"))
    return root


def test_help_names_every_command_and_each_command_explains_itself(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for command in ("synth", "index", "inspect", "verify", "report"):
        assert command in text
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert "--json" in capsys.readouterr().out


def test_no_command_prints_the_help_and_the_version_is_printed(run):
    code, out, _ = run()
    assert code == 2
    assert "headrace synth" in out
    assert run("--version")[1].strip() == f"headrace {headrace.__version__}"


def test_the_command_is_installed_and_the_module_runs(tmp_path):
    out = subprocess.run(
        [sys.executable, "-m", "headrace", "index", str(tmp_path / "none")],
        capture_output=True,
        text=True,
    )
    assert out.returncode == 2
    assert "no such folder" in out.stderr
    assert "Traceback" not in out.stderr


def test_the_first_steps_of_the_help_work(run, tmp_path):
    root = tmp_path / "oxe"
    code, out, _ = run("synth", root, "--only", "rt1", "--only", "bc_z", "--episodes", 2)
    assert code == 0
    assert out.startswith("2 datasets, 5 episodes")  # bc_z has a validation episode
    code, out, _ = run("index", root)
    assert code == 0
    assert "fractal20220817_data 0.1.0" in out
    _, out, _ = run("index", root, "--json")
    assert [row["scanned_steps"] for row in json.loads(out)["datasets"]] == [0, 0]
    code, out, _ = run("inspect", root)
    assert code == 0
    assert "rt1" in out
    code, out, _ = run("verify", root)
    assert code == 0
    assert out.count(": ok;") == 2


def test_index_takes_a_version_a_dataset_or_a_root(run, two):
    for path, count in ((two / "bridge" / "0.1.0", 1), (two / "bridge", 1), (two, 2)):
        code, out, _ = run("index", path, "--json")
        assert code == 0
        assert len(json.loads(out)["datasets"]) == count
    code, out, _ = run("index", two / "bridge", two / "droid", "--json")
    assert [row["name"] for row in json.loads(out)["datasets"]] == ["bridge", "droid"]


def test_index_continues_past_a_broken_dataset_and_reports_it_at_the_end(run, two):
    os.truncate(shards(two / "bridge" / "0.1.0")[0], 50)
    code, out, err = run("index", two)
    assert code == 1
    assert "droid 1.0.1" in out
    assert "headrace index:" in err
    assert "bridge 0.1.0" in err
    code, out, err = run("index", two, "--quarantine")
    assert (code, err) == (0, "")
    assert "quarantined" in out
    assert shards(two / "bridge" / "0.1.0")[0].name in out


def test_index_with_quarantine_says_what_it_found_and_where(run, two):
    folder = two / "bridge" / "0.1.0"
    lost, damaged = shards(folder)[0], shards(folder)[1]
    episodes = len(records(lost))
    os.truncate(lost, 50)
    offset, length = records(damaged)[0]
    rewrite(damaged, lambda data: data.__setitem__(offset + length // 2, 0xA5))
    code, out, _ = run("index", folder, "--quarantine")
    assert code == 0
    lines = [line for line in out.splitlines() if line.startswith("  ")]
    assert len(lines) == 2, "episodes that were lost together share a line"
    assert lost.name in lines[0]
    assert damaged.name in lines[1]
    assert f"offset {offset}, episode 0:" in lines[1]
    _, out, _ = run("index", folder, "--json")
    (row,) = json.loads(out)["datasets"]
    assert len(row["damage"]) == row["quarantined"] == episodes + 1
    found = {(each["file"], each["record"], each["offset"]) for each in row["damage"]}
    assert (damaged.name, 0, offset) in found
    assert all(each["problem"] for each in row["damage"])


def test_every_report_of_a_quick_catalog_says_that_frames_are_not_checked(run, two, tmp_path):
    words = "frames are not checked"
    assert words in run("index", two, "--quick")[1]
    _, out, _ = run("index", two, "--quick", "--json")
    assert [row["checksums"] for row in json.loads(out)["datasets"]] == [False, False]
    assert run("inspect", two)[1].count(words) == 2
    assert words in run("inspect", two / "bridge")[1]
    _, out, _ = run("inspect", two / "bridge", "--json")
    assert json.loads(out)["catalog"]["checksums"] is False
    assert run("verify", two, "--decode", "none")[1].count(words) == 2
    _, out, _ = run("verify", two, "--decode", "none", "--json")
    assert [each["catalog_checksums"] for each in json.loads(out)["datasets"]] == [False, False]
    mixture = f"{{root: {two}, defaults: {{offset: 1}}, sources: [{{name: bridge}}]}}"
    bench = ["bench", mixture, "--steps", 2, "--warmup", 1, "--no-limit", "--name", "quick"]
    bench += ["--runs", tmp_path / "runs", "loader.batch_size=2", "loader.image_size=32"]
    code, out, err = run(*bench)
    assert code == 0, err
    assert words in out
    for report in (tmp_path / "runs").glob("*/report.html"):
        assert words in report.read_text()
    # Indexing without --quick adds the checksums.
    _, out, err = run("index", two)
    assert words not in out
    assert err.count(words) == 2
    for command in (("inspect", two), ("verify", two, "--decode", "none")):
        assert words not in run(*command)[1]


def test_inspect_json_has_what_it_promises(run, two):
    code, out, _ = run("inspect", two / "droid", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["name"], found["version"]) == ("droid", "1.0.1")
    assert found["path"] == str(two / "droid" / "1.0.1")
    assert set(found["splits"]["train"]) == {"episodes", "steps", "shards", "bytes"}
    assert found["splits"]["train"]["episodes"] == 3
    camera = found["cameras"][0]
    assert camera["key"] == "steps/observation/exterior_image_1_left"
    assert (camera["height"], camera["width"], camera["channels"]) == (180, 320, 3)
    assert camera["encoding"] == "jpeg"
    assert 5_000 < camera["mean_bytes"] < 30_000
    fields = {field["key"]: field for field in found["fields"]}
    assert fields["steps/action"]["dtype"] == "float64"
    assert fields["steps/action"]["shape"] == [7]
    assert set(found["catalog"]) == {*("path", "bytes", "level", "checksums", "format_version")}
    assert found["catalog"]["level"] == "frames"
    assert os.path.isdir(found["catalog"]["path"])
    assert found["roles"]["language"] == "steps/language_instruction"
    assert found["instructions"]


def test_the_mean_bytes_of_a_frame_are_those_of_the_files(run, two):
    catalog = headrace.Catalog.open(two / "droid" / "1.0.1")
    sizes = [
        catalog.place(e, t, "wrist_image_left").length
        for e in range(len(catalog))
        for t in range(int(catalog.steps[e]))
    ]
    found = json.loads(run("inspect", two / "droid", "--json")[1])
    camera = next(c for c in found["cameras"] if c["key"].endswith("wrist_image_left"))
    assert abs(camera["mean_bytes"] - sum(sizes) / len(sizes)) < 1


def test_inspect_of_several_lists_them_and_prints_a_line_each(run, two):
    found = json.loads(run("inspect", two, "--json")[1])
    assert [one["name"] for one in found["datasets"]] == ["bridge", "droid"]
    out = run("inspect", two)[1]
    assert "bridge" in out
    assert "exterior_image_1_left 180x320" in out


def test_inspect_of_one_shows_splits_cameras_fields_and_instructions(run, two):
    code, out, _ = run("inspect", two / "bridge")
    assert code == 0
    for words in ("train", "480 x 640", "jpeg", "main", "steps/action/world_vector", "catalog:"):
        assert words in out


def test_every_odd_dataset_can_be_inspected_and_verified(run, odd):
    assert run("inspect", odd)[0] == 0
    for folder in headrace.find_datasets(odd):
        assert run("inspect", folder)[0] == 0
    assert run("verify", odd, "--decode", "all")[0] == 0


@pytest.mark.parametrize("name", ["sheet.png", "sheet.jpg"])
def test_the_contact_sheet_is_a_picture(run, two, tmp_path, name):
    path = tmp_path / "pictures" / name
    code, out, _ = run("inspect", two, "--picture", path, "--pairs", 3)
    assert code == 0
    assert "6 pairs" in out
    picture = cv2.imread(str(path))
    assert picture.shape[0] > 300
    assert picture.std() > 20


def test_a_contact_sheet_of_odd_images_is_drawn(run, odd, tmp_path):
    path = tmp_path / "odd.png"
    assert run("inspect", odd, "--picture", path)[0] == 0
    assert cv2.imread(str(path)) is not None


def test_a_picture_of_an_unknown_kind_is_refused(run, two, tmp_path):
    code, _, err = run("inspect", two, "--picture", tmp_path / "sheet.gif")
    assert (code, ".png" in err) == (2, True)


def test_verify_reports_damage_with_its_place_and_the_exit_code(run, two):
    shard = shards(two / "bridge" / "0.1.0")[0]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    code, out, _ = run("verify", two)
    assert code == 1
    assert "1 episode DAMAGED" in out
    assert shard.name in out
    assert "offset" in out
    found = json.loads(run("verify", two, "--json")[1])
    assert found["ok"] is False
    assert [one["ok"] for one in found["datasets"]] == [False, True]
    assert found["datasets"][0]["findings"][0]["file"] == shard.name
    code, out, _ = run("verify", two, "--quarantine")
    assert code == 1
    assert "1 episode quarantined" in out
    assert json.loads(run("inspect", two / "bridge", "--json")[1])["quarantined"] == 1


def test_verify_reads_again_and_quarantines_what_a_run_has_passed_over(run, two, tmp_path):
    bridge = two / "bridge" / "0.1.0"
    number, t, _ = spoil_frame(two)
    catalog = hr.Catalog.open(bridge)
    listed = [catalog.info(number), catalog.info(int(catalog.episodes("train")[0]))]  # one intact
    info = listed[0]
    with RunWriter(tmp_path / "run", batches=True) as records:
        records.damaged(
            [
                DamagedFrame("bridge", str(bridge / e.file), 0, e.id, t, "image", "no JPEG", 7)
                for e in listed
            ]
        )
    code, out, _ = run("verify", "--from", tmp_path / "run", "--json")
    (found,) = json.loads(out)["datasets"]
    assert (code, found["records"], found["damaged_episodes"]) == (1, 2, 1)
    assert {(one["file"], one["episode"]) for one in found["findings"]} == {
        (info.file, info.record)
    }
    for given in (tmp_path / "run", tmp_path / "run" / "damaged.jsonl"):
        code, out, _ = run("verify", "--from", given, "--quarantine")
        assert (code, "1 episode quarantined" in out) == (1, True)
    assert hr.Catalog.open(bridge).quarantined == {number}


def test_verify_is_told_what_to_read(run, two, tmp_path):
    RunWriter(tmp_path, batches=True).close()
    code, out, _ = run("verify", "--from", tmp_path)
    assert (code, "no damaged frames" in out) == (0, True)
    for wrong in ((), (two, "--from", tmp_path), ("--from", tmp_path / "none")):
        assert run("verify", *wrong)[0] == 2


def test_synth_refuses_what_it_does_not_know(run, tmp_path):
    code, _, err = run("synth", tmp_path / "x", "--only", "brige")
    assert code == 2
    assert "bridge" in err


def test_output_into_a_pipe_that_closes_is_not_an_error(two):
    process = subprocess.run(
        f"{sys.executable} -m headrace inspect {two} --json | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert process.stdout == "{\n"
    assert process.stderr == ""


def test_ctrl_c_ends_with_a_word_and_130(monkeypatch, run, two):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.catalog.build._build", interrupted)
    code, _, err = run("index", two)
    assert code == 130
    assert "interrupted" in err


def test_a_person_sees_a_progress_bar_and_a_pipe_does_not(two):
    """In a terminal the bar shows what is indexed; without one stderr stays clean."""
    command = [sys.executable, "-m", "headrace", "index", str(two)]
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert piped.stderr == ""
    for folder in headrace.find_datasets(two):
        shutil.rmtree(folder / ".headrace")
    parent, child = pty.openpty()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=child)
    os.close(child)
    seen = b""
    try:
        while chunk := os.read(parent, 4096):
            seen += chunk
    except OSError:  # the terminal is closed from the other side
        pass
    os.close(parent)
    assert process.wait() == 0
    assert b"indexing" in seen


def test_report_rebuilds_the_files_of_one_run_and_prints_its_figures(run, tmp_path):
    folder = write_made_run(tmp_path / "run")
    code, out, err = run("report", folder)
    assert (code, err) == (0, "")
    assert "samples/s" in out
    assert "Near the decode limit (9" in out
    assert "\nThe ten slowest batches\n" in out
    assert "Switch and stay" not in out  # batches of a global shuffle look alike
    assert out.strip().endswith(str(folder / "report.html"))
    for name in ("mixture_over_time.svg", "mixture_windows_every_stride.svg", "report.html"):
        assert (folder / name).exists()
    before = (folder / "report.html").read_bytes()
    code, out, _ = run("report", folder, "--out", tmp_path / "copy.html")
    assert out.strip().endswith("copy.html")
    assert (tmp_path / "copy.html").exists()
    assert (folder / "report.html").read_bytes() == before


def test_report_compares_several_runs_in_one_page(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [write_made_run(tmp_path / name, rate=rate) for name, rate in (("a", 900), ("b", 99))]
    code, out, _ = run("report", *folders)
    assert code == 0
    assert "a is fastest" in out
    assert out.strip().endswith("comparison.html")
    assert (tmp_path / "comparison.html").exists()
    code, out, _ = run("report", *folders, "--json", "--out", "deep/er.html")
    found = json.loads(out)
    assert found["page"] == "deep/er.html"
    assert found["verdict"].startswith("a is fastest")
    assert [entry["label"] for entry in found["runs"]] == ["a", "b"]
    assert found["runs"][0]["figures"]["samples_per_s"] > 800
    assert found["runs"][0]["mixture"]["bridge"]["asked"] == pytest.approx(1 / 3)
    times = found["runs"][0]["batch_time"]
    assert sum(group["batches"] for group in times["by_dominant_dataset"]) == 380
    assert times["switch"]["batches"] + times["stay"]["batches"] == 379
    assert times["switch_stay_ratio"] == pytest.approx(1, abs=0.2)
    assert len(times["slowest"]) == 10


def test_report_shows_what_a_killed_run_left_and_says_what_is_missing(run, tmp_path):
    folder = write_made_run(tmp_path / "run", batches=40)
    (folder / "result.json").unlink()
    text = (folder / "batch_times.jsonl").read_text()
    (folder / "batch_times.jsonl").write_text(text[:-30])
    code, out, err = run("report", folder, tmp_path / "gone", "--out", tmp_path / "page.html")
    assert code == 1
    assert "Incomplete." in out
    assert "ends in half a line" in err
    assert "no such run folder" in err
    assert (tmp_path / "page.html").exists()


def test_report_of_something_else_is_one_message(run, tmp_path):
    for path, words in ((tmp_path, "not a run folder"), (tmp_path / "none", "no such run folder")):
        code, out, err = run("report", path)
        assert (code, out) == (2, "")
        assert words in err
        assert "Traceback" not in err


# -- folders of Parquet files ----------------------------------------------------------------------


@pytest.fixture
def parquet(tmp_path):
    return write_set(tmp_path / "train")


def test_index_reads_the_footers_once(parquet, capsys):
    assert main(["index", str(parquet)]) == 0
    first = capsys.readouterr().out
    assert "4 footers read" in first
    assert "357" in first
    assert main(["index", str(parquet), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["tables"]
    assert (one["files"], one["row_groups"], one["rows"], one["read_files"]) == (4, 15, 357, 0)


def test_inspect_shows_rows_row_groups_and_columns(parquet, capsys):
    assert main(["inspect", str(parquet)]) == 0
    out = capsys.readouterr().out
    assert "357 rows in 15 row groups of 0 to 200; 1 file without rows" in out
    assert re.search(r"half +double", out)
    assert "1 other schemas" in out  # the file without rows
    assert main(["inspect", str(parquet), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "parquet"


def test_a_set_that_cannot_be_indexed_is_told_and_fails_the_command(parquet, capsys):
    (parquet / "shard_0002.parquet").write_bytes(b"no")
    assert main(["index", str(parquet)]) == 1
    err = capsys.readouterr().err
    assert "b'no'" in err
    assert str(parquet / "shard_0002.parquet") in err


def test_datasets_and_tables_may_be_given_together(parquet, bridge, capsys):
    assert main(["index", str(parquet), str(bridge)]) == 0
    out = capsys.readouterr().out
    assert "bridge 0.1.0" in out
    assert "357" in out


@pytest.mark.parametrize("command", ["bench", "doctor", "tune"])
@pytest.mark.parametrize(
    "words",
    [
        ["oxe29", "--only", "bridge,droid", "root=/d"],
        ["oxe29", "root=/d", "only=[bridge,droid]"],
        ["{root: /d, sources: [{name: bridge}, {name: droid}]}"],
    ],
)
def test_sources_are_chosen_on_the_command_line(command, words):
    args = parsed(build_parser(), [command, *words])
    mixture = jobs_of(args.mixture, args.overrides, ["headrace"])["headrace"].mixture
    assert [source.name for source in mixture.sources] == ["bridge", "droid"]


def test_a_source_that_the_mixture_does_not_have_is_answered_with_those_it_has(run, oxe):
    for command in ("bench", "doctor", "tune"):
        code, _, err = run(command, "oxe29", f"root={oxe}", "--only", "bridge,driod")
        assert code == 2
        assert "droid" in err
