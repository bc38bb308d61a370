"""The doctor in a loop and on the command line: it disturbs nothing, and says what it knows."""

import json
import time
from itertools import islice

import pytest

import headrace as hr
from headrace.cli.main import main
from headrace.errors import UsageError
from headrace.loader.loader import feed_of
from headrace.measure.evidence import run_evidence
from headrace.measure.report import write_run_report
from headrace.measure.results import read_run
from headrace.measure.verdict import give_verdict, run_verdict
from headrace.tuning import examine as examine_module

QUICK = {"warmup": 2, "warmup_seconds": 0.0}


def sleep(_):
    time.sleep(0.03)


def test_watching_changes_neither_the_batches_nor_the_state(loaders):
    watched, alone = loaders(), loaders()
    with hr.Doctor(watched, quiet=True, limits=False, **QUICK):
        draws = [batch.draws.tolist() for batch in islice(watched, 6)]
    assert draws == [batch.draws.tolist() for batch in islice(alone, 6)]
    assert watched.state_dict() == alone.state_dict()
    assert feed_of(watched).on_batch is None


def test_the_verdict_is_printed_at_the_end_unless_it_is_to_be_quiet(loaders, capsys):
    for quiet in (True, False):
        loader = loaders()
        with hr.Doctor(loader, quiet=quiet, limits=False, **QUICK):
            for batch in islice(loader, 8):
                sleep(batch)
        printed = capsys.readouterr().out
        assert bool(printed) != quiet
    assert "samples/s" in printed


def test_an_exception_in_the_loop_passes_through_and_is_recorded(loaders, tmp_path, capsys):
    loader = loaders()
    doctor = hr.Doctor(loader, run=tmp_path / "run", **QUICK)
    with pytest.raises(ZeroDivisionError), doctor:
        for batch in islice(loader, 5):
            sleep(batch)
        1 / 0  # noqa: B018
    assert capsys.readouterr().out == ""
    run = read_run(tmp_path / "run")
    assert (run.status, run.cause) == ("failed", "ZeroDivisionError: division by zero")
    assert len(run.batches) == 5


def test_a_loop_that_ends_in_its_warm_up_has_no_verdict(loaders):
    loader = loaders()
    with hr.Doctor(loader, quiet=True) as doctor:
        next(loader)
    assert (doctor.verdict().kind, doctor.verdict().healthy) == ("unknown", False)


def test_two_doctors_cannot_watch_one_loader(loaders):
    loader = loaders()
    with hr.Doctor(loader, quiet=True):
        with pytest.raises(UsageError, match="another doctor"), hr.Doctor(loader):
            pass
        assert feed_of(loader).on_batch is not None


def test_something_that_is_no_loader_is_refused():
    with pytest.raises(UsageError, match="list"):
        hr.Doctor([1, 2])


def test_a_run_folder_is_like_that_of_a_benchmark(loaders, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_RUN", str(tmp_path / "mine"))
    loader = loaders()
    flops = {"flops_per_step": 1e9, "peak_flops": 1e12}
    with hr.Doctor(loader, quiet=True, limits=False, **flops, **QUICK) as doctor:
        for batch in islice(loader, 10):
            sleep(batch)
    folder = tmp_path / "mine"
    run = read_run(folder)
    assert (run.status, run.problems) == ("complete", ())
    assert run.numbers["peak_anon_mb"] > 10
    assert run.numbers["stall_s_per_step"] == pytest.approx(doctor.evidence().wait_s, abs=1e-4)
    assert run.numbers["mean_s"] == pytest.approx(doctor.evidence().period_s, rel=0.02)
    assert sum(share.actual for share in run.mixture.values()) == pytest.approx(1)
    assert write_run_report(folder).exists()
    again = run_evidence(read_run(folder))
    assert again == doctor.evidence()
    assert again.mfu == pytest.approx(1e9 / again.period_s / 1e12)


def test_a_result_of_the_training_program_is_not_overwritten(loaders, tmp_path):
    (tmp_path / "result.json").write_text('{"name": "laq"}')
    loader = loaders()
    with hr.Doctor(loader, quiet=True, limits=False, run=tmp_path, **QUICK):
        next(loader)
    assert json.loads((tmp_path / "result.json").read_text()) == {"name": "laq"}
    assert (tmp_path / "doctor.json").exists()


def test_the_headroom_is_the_step_over_a_batch_that_is_there(loaders):
    loader = loaders()
    seen = []
    with hr.Doctor(loader, quiet=True, limits=False, **QUICK) as doctor:
        for batch in islice(loader, 6):
            sleep(batch)
        found = doctor.headroom(lambda b: (seen.append(b), sleep(b)), batch, steps=4)
    assert found >= 0.03
    assert doctor.evidence().replayed_s == found
    assert doctor.evidence().steps == 4  # replayed steps are none of the loop's
    assert all(each is batch for each in seen)


def test_the_headroom_takes_a_batch_itself_if_none_is_given(loaders):
    loader = loaders()
    with hr.Doctor(loader, quiet=True, limits=False, **QUICK) as doctor:
        doctor.headroom(len, steps=2)
        assert feed_of(loader).on_batch is not None
    assert doctor.evidence().steps == 0
    with pytest.raises(UsageError, match="steps is 0"):
        doctor.headroom(len, steps=0)
    with pytest.raises(UsageError, match="no loader"):
        hr.Doctor(None).headroom(len)


def test_the_loop_of_any_loader_can_be_told(capsys):
    with hr.Doctor(None, **QUICK) as doctor:
        for _ in range(6):
            time.sleep(0.01)
            doctor.on_batch(waited_s=0.005, samples=32)
    evidence = doctor.evidence()
    assert evidence.wait_s == pytest.approx(0.005)
    assert (evidence.batch_size, evidence.steps) == (32, 4)
    assert capsys.readouterr().out.startswith(doctor.verdict().headline)
    assert doctor.verdict().kind == "unknown"


def test_batches_of_any_loader_can_be_watched():
    def batches():
        for number in range(6):
            time.sleep(0.02)
            yield number

    with hr.Doctor(None, quiet=True, **QUICK) as doctor:
        assert list(doctor.over(batches(), samples=4)) == list(range(6))
    assert doctor.evidence().wait_s >= 0.02
    assert doctor.evidence().waiting > 0.5


def test_ctrl_c_ends_the_loop_and_the_verdict_is_printed(loaders, tmp_path, capsys):
    loader = loaders()
    with pytest.raises(KeyboardInterrupt), hr.Doctor(loader, run=tmp_path, **QUICK):
        for batch in islice(loader, 5):
            sleep(batch)
        raise KeyboardInterrupt
    assert "  step: " in capsys.readouterr().out
    assert read_run(tmp_path).status == "interrupted"


def test_a_doctor_that_fails_does_not_stop_the_training(loaders, monkeypatch, caplog):
    loader = loaders()
    with hr.Doctor(loader, quiet=True, **QUICK) as doctor:
        next(loader)
        monkeypatch.setattr(doctor, "on_batch", None)
        assert len(next(loader)) == 8
        assert len(next(loader)) == 8
    assert caplog.text.count("the doctor stops watching") == 1


def test_only_the_first_rank_prints_and_records(loaders, tmp_path, capsys):
    loader = loaders(rank=1, world_size=2)
    with hr.Doctor(loader, run=tmp_path / "run", limits=False, **QUICK) as doctor:
        for batch in islice(loader, 4):
            sleep(batch)
    assert doctor.evidence().steps == 2
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "run").exists()


def test_validation_in_a_pause_is_not_counted(loaders):
    loader = loaders()
    with hr.Doctor(loader, quiet=True, limits=False, **QUICK) as doctor:
        for _ in islice(loader, 6):
            with doctor.pause():
                time.sleep(0.3)
    assert doctor.evidence().step_s < 0.3


def test_a_torch_loader_can_be_watched(mixture):
    torch_outputs = pytest.importorskip("headrace.outputs.torch", exc_type=UsageError)
    options = {"batch_size": 4, "image_size": 32, "keep_free": 0, "workers": 1}
    loader = torch_outputs.TorchLoader(mixture, **options, steps_per_epoch=8)
    with loader, hr.Doctor(loader, quiet=True, limits=False, **QUICK) as doctor:
        for batch in loader:
            sleep(batch)
    assert doctor.evidence().steps == 6
    assert doctor.evidence().step_s >= 0.03
    assert doctor.evidence().copy_s is None


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def yaml_file(mixture, tmp_path):
    path = tmp_path / "mixture.yaml"
    path.write_text(mixture.to_yaml())
    return str(path)


@pytest.mark.usefixtures("quick_limits")
def test_a_mixture_is_examined(yaml_file, tmp_path, capsys, monkeypatch):
    short = examine_module.BenchSettings
    monkeypatch.setattr(
        examine_module, "BenchSettings", lambda **o: short(**{**o, "warmup_seconds": 0.5})
    )
    out = tmp_path / "doctor.json"
    options = ["loader.batch_size=8", "loader.image_size=64", "headrace.keep_free=0"]
    code = main(["doctor", yaml_file, *options, "--seconds", "0.5", "--json", str(out)])
    found = json.loads(out.read_text())
    text = capsys.readouterr().out
    assert found["verdict"]["kind"] in ("feeds", "held up"), text
    assert code == (0 if found["verdict"]["healthy"] else 1)
    assert text.startswith(found["verdict"]["headline"])
    assert "batch 8" in text
    assert len(found["evidence"]["sources"]) == 3
    assert found["evidence"]["decode_limit"] > 0


def write_result(folder, **values):
    records = [
        {"idx": i, "t_s": i * 0.1, "dt_s": 0.1, "fetch_dt_s": 0.04, "is_warmup": False,
         "samples": 64, "dataset_counts": {"a": 64}}
        for i in range(20)
    ]  # fmt: skip
    folder.mkdir()
    (folder / "batch_times.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    result = {
        "name": "laq",
        "backend": "headrace",
        "status": "complete",
        "samples_per_s": 640.0,
        "mean_s": 0.1,
        "stall_s_per_step": 0.04,
        "simulated_step_ms": 60.0,
        "decode_limit_samples_per_s": 700.0,
        "storage_limit_samples_per_s": 90000.0,
        "cpu_s_per_sample": 0.003,
        "machine": {"cores_allowed": 2},
        "config": {"job": {"batch_size": 64, "image_size": 256, "workers": None}},
        **values,
    }
    (folder / "result.json").write_text(json.dumps(result))
    return str(folder)


def test_an_archived_benchmark_is_examined(tmp_path, capsys):
    run = write_result(tmp_path / "waits")
    assert main(["doctor", "--run", run]) == 1
    text = capsys.readouterr().out
    assert text.startswith("Decode-bound")
    for value in ("1.92 of 2 cores", "40%", "4 cores instead of 2", "1.7x"):
        assert value in text
    healthy = write_result(tmp_path / "healthy", stall_s_per_step=0.0005)
    assert main(["doctor", "--run", healthy, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"]["kind"] == "compute"
    mfu = ["--flops-per-step", "5e12", "--peak-flops", "1e14"]
    assert main(["doctor", "--run", healthy, *mfu]) == 0
    assert "MFU 50.0%" in capsys.readouterr().out


@pytest.mark.parametrize(("stall", "waits"), [(0.0019, False), (0.0021, True)])
def test_the_report_and_the_doctor_agree_on_what_waiting_is(tmp_path, stall, waits):
    run = tmp_path / "run"
    write_result(run, stall_s_per_step=stall)
    verdict = give_verdict(run_evidence(read_run(run)))
    assert verdict.healthy != waits
    assert verdict.headline in run_verdict(read_run(run))


def test_a_benchmark_without_a_step_says_what_the_loader_feeds(tmp_path, capsys):
    run = write_result(tmp_path / "alone", simulated_step_ms=0, stall_s_per_step=0.1)
    assert main(["doctor", "--run", run]) == 0
    text = capsys.readouterr().out
    assert "batch 64" in text
    assert "100 ms" in text


def test_what_cannot_be_examined_is_exit_code_2(tmp_path, capsys):
    killed = tmp_path / "killed"
    killed.mkdir()
    (killed / "memory.jsonl").touch()
    assert main(["doctor", "--run", str(killed)]) == 2
    assert main(["doctor", "--run", str(tmp_path / "none")]) == 2
    assert main(["doctor"]) == 2
    assert main(["doctor", "oxe29", "--run", str(killed)]) == 2
    compared = write_result(tmp_path / "compared", comparison={})
    assert main(["doctor", "--run", compared]) == 2
    (tmp_path / "compared" / "doctor.json").write_text('{"evidence": {"sources": [3]}}')
    capsys.readouterr()
    (tmp_path / "compared" / "result.json").write_text("{}")
    assert main(["doctor", "--run", compared]) == 2
    assert "doctor.json" in capsys.readouterr().out
