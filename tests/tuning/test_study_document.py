"""Study files: what they mean, and errors that name the key."""

from dataclasses import replace

import pytest

from headrace.errors import UsageError
from headrace.measure.baselines import find_baseline
from headrace.measure.job import BenchSettings
from headrace.tuning.study import packaged_studies, plan, read_study
from headrace.tuning.study.document import study_from

BASE = {"name": "s", "mixture": "oxe29", "overrides": ["root=/x"]}


def planned(values, *overrides, cpus=64):
    study = study_from({**BASE, **values})
    return plan(replace(study, overrides=(*study.overrides, *overrides)), cpus=cpus)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"laddder": []}, r"unknown key laddder.*ladder"),
        ({}, "nothing to run"),
        ({"ladder": [{"change": "a=1"}], "grid": {"a": [1]}}, "ladder and grid"),
        ({"ladder": []}, "nothing to run"),
        ({"ladder": [{"chnge": "a=1"}]}, r"unknown key ladder\[0\]\.chnge.*'change'"),
        ({"ladder": [{"label": "x"}]}, r"ladder\[0\] changes nothing"),
        ({"ladder": [{"change": ["a=1", "b=2"]}]}, r"ladder\[0\]\.change is"),
        ({"ladder": [{"change": "a"}]}, r"ladder\[0\]: override 'a'"),
        ({"ladder": [{"change": "a=1", "against": "b"}]}, r"ladder\[0\]\.against is 'b'"),
        ({"ladder": [{"label": "baseline", "change": "a=1"}]}, r"ladder\[0\].* 'baseline'"),
        ({"ladder": [{"label": "x", "sources": 0}]}, r"ladder\[0\].*sources is 0"),
        ({"ladder": [{"label": "x", "command": []}]}, r"ladder\[0\].*command is"),
        ({"grid": {"loader.batch_size": 64}}, r"grid\.loader\.batch_size is 64"),
        ({"runs": [{"overrides": "a=1"}]}, r"runs\[0\]\.overrides is"),
        ({"runs": [{"label": "x"}], "guard": {"min_avail": "1GiB"}}, r"guard\.min_avail.*min_av"),
        (
            {"runs": [{"label": "x"}], "guard": {"min_available": "lots"}},
            r"guard.*min_available is .lots",
        ),
        ({"runs": [{"label": "x"}], "guard": {"timeout_s": 0}}, r"guard.*timeout_s is 0"),
        ({"runs": [{"label": "x"}], "guard": {"stall_seconds": "long"}}, r"guard\.stall_seconds"),
        ({"runs": [{"label": "x"}], "repeats": 0}, "repeats is 0"),
        ({"runs": [{"label": "x"}], "seconds": "many"}, "seconds is 'many'"),
        ({"runs": [{"label": "x"}], "mixture": None}, "mixture is missing"),
        ({"runs": [{"label": "x"}], "train": "laq_debug"}, "train is given together with mixture"),
    ],
)
def test_an_error_names_the_key_and_the_value(values, words):
    with pytest.raises(UsageError, match=words):
        study_from({**BASE, **values})


def test_rows_can_be_added_to_a_study_as_it_is():
    more = ["{label: large, change: loader.batch_size=512}", "{label: x, command: 'true'}"]
    trials = plan(read_study("metadata", ["root=/x"], more), cpus=64)
    assert [trial.label for trial in trials[-2:]] == ["large", "x"]
    assert trials[-2].job.loader.batch_size == 512
    assert trials[-1].command == "true"
    with pytest.raises(UsageError, match=r"ladder\[\d\]\.chnge"):
        read_study("metadata", (), ["{label: large, chnge: loader.batch_size=512}"])


def test_a_file_that_is_not_there_names_the_nearest_packaged_study(tmp_path):
    with pytest.raises(UsageError, match=r"no such study file.*'param_ladder'"):
        read_study("param_lader")
    (tmp_path / "x.yaml").write_text("ladder: [{change: a=1}\n")
    with pytest.raises(UsageError, match=r"cannot read the study: .*x\.yaml"):
        read_study(tmp_path / "x.yaml")


def test_every_packaged_study_can_be_planned():
    names = ["cpu_sweep", "metadata", "multi_dataset", "param_ladder", "samples_per_episode"]
    assert sorted(packaged_studies()) == [*names, "sustained", "validation_ram"]
    for name in packaged_studies():
        study = read_study(name, ["root=/x"])
        trials = plan(study, cpus=64)
        assert [t.label for t in trials if t.known] == [], name
        assert study.name == name
        assert study.about
        for trial in trials:  # the least by which the users' logs compare, and decide
            assert trial.settings.warmup >= 8
            assert trial.settings.steps == (1200 if name == "sustained" else 160)
            if trial.backend == "tfdata":  # options that exclude each other are refused here
                find_baseline("tfdata").shuffle_of(trial.job)


def test_a_run_is_as_long_as_its_batches_or_its_time_limit():
    one = [{"label": "x"}]
    lengths = [
        (study.steps, study.seconds)
        for study in (
            study_from({**BASE, "runs": one, **given})
            for given in ({}, {"steps": 9}, {"seconds": 9}, {"steps": 9, "seconds": 7})
        )
    ]
    assert lengths == [(160, 120), (9, None), (None, 9), (9, 7)]
    both = BenchSettings(steps=9, seconds=7)
    assert [both.over(6, 8), both.over(6, 9), both.over(7, 8)] == [False, True, True]


def test_a_row_with_a_source_that_was_not_selected_is_skipped():
    rows = [{"label": name, "sources": [name]} for name in ("kuka", "bridge", "brigde")]
    _, kuka, bridge, typo = planned({"ladder": rows}, "only=[kuka, rt1]")
    assert [source.name for source in kuka.job.mixture.sources] == ["kuka"]
    assert bridge.known[0] == "skipped"
    assert typo.known[0] == "invalid configuration"


def test_a_rung_is_its_base_with_exactly_one_change():
    trials = planned(
        {
            "seconds": 5,
            "baseline": {"label": "base", "overrides": ["loader.batch_size=32"]},
            "ladder": [
                {"label": "big", "change": "loader.batch_size=128"},
                {"label": "tf", "backend": "tfdata"},
                {"label": "choose", "against": "tf", "change": "tfdata.mixing.strategy=choose"},
                {"label": "step", "change": "bench.compute_ms=50"},
                {"label": "two", "sources": 2},
                {"label": "copies", "against": "two", "copies": 3},
            ],
        }
    )
    base, big, tf, choose, step, two, copies = trials
    assert [t.job.loader.batch_size for t in trials] == [32, 128, 32, 32, 32, 32, 32]
    assert (tf.backend, choose.backend, step.backend) == ("tfdata", "tfdata", "headrace")
    assert dict(choose.job.options) == {"mixing.strategy": "choose"}
    assert step.settings == BenchSettings(seconds=5, compute_ms=50)
    assert big.settings == base.settings == BenchSettings(seconds=5)
    assert [len(t.job.mixture.sources) for t in (base, two, copies)] == [29, 2, 6]
    assert (base.change, big.change, tf.change) == ("", "loader.batch_size=128", "backend=tfdata")
    first = two.job.mixture.sources[0]
    same = copies.job.mixture.sources[:3]
    assert {copies.job.mixture.folder(s) for s in same} == {two.job.mixture.folder(first)}
    assert sum(s.weight for s in same) == pytest.approx(first.weight)


def test_overrides_of_the_command_line_come_before_what_a_row_changes():
    rows = {"ladder": [{"label": "big", "change": "loader.batch_size=128"}]}
    base, big = planned(rows, "loader.batch_size=16", "loader.image_size=64")
    assert (base.job.loader.batch_size, big.job.loader.batch_size) == (16, 128)
    assert base.job.loader.image_size == big.job.loader.image_size == 64


def test_a_grid_is_every_combination():
    trials = planned({"grid": {"loader.batch_size": [8, 16], "backend": ["headrace", "tfdata"]}})
    assert [(t.job.loader.batch_size, t.backend) for t in trials] == [
        (8, "headrace"),
        (8, "tfdata"),
        (16, "headrace"),
        (16, "tfdata"),
    ]
    assert trials[1].label == "batch_size=8, backend=tfdata"


def test_runs_may_be_commands_alone():
    study = study_from({"runs": [{"label": "a", "command": "true"}, {"command": ["x", "--y"]}]})
    first, second = plan(study, cpus=1)
    assert (first.command, second.command, second.label) == ("true", ("x", "--y"), "x --y")


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ("loader.batchsize=3", "invalid configuration", "batch_size"),
        ("loader.batch_size=many", "invalid configuration", "loader.batch_size is 'many'"),
        ("tfdata.mixing.strategy=choose", "invalid configuration", "runs headrace"),
        ("bench.compute=3", "invalid configuration", "bench.*compute_ms"),
        ("sources.brigde.weight=0", "invalid configuration", "bridge"),
        ("bench.cpus=4", "skipped", "needs 4 CPUs; 2 are allowed"),
    ],
)
def test_what_one_row_cannot_do_is_that_row_s_status(change, status, words):
    import re

    base, row = planned({"ladder": [{"label": "x", "change": change}]}, cpus=2)
    assert base.known is None
    assert row.known[0] == status
    assert re.search(words, row.known[1])


def test_what_a_row_inherits_need_not_concern_its_backend():
    base, tf = planned(
        {
            "baseline": {"overrides": ["loader.memory=1GiB"]},
            "ladder": [{"label": "tf", "backend": "tfdata"}],
        }
    )
    assert (base.known, tf.known) == (None, None)
    assert (dict(base.job.options), dict(tf.job.options)) == ({"memory": "1GiB"}, {})


def test_more_sources_than_the_mixture_has_are_skipped():
    _, row, wrong = planned(
        {"ladder": [{"label": "x", "sources": 30}, {"label": "y", "sources": ["brigde"]}]}
    )
    assert row.known == ("skipped", "needs 30 sources; the mixture has 29")
    assert "'bridge'" in wrong.known[1]


def test_what_is_wrong_with_every_row_is_an_error():
    with pytest.raises(UsageError, match="batch_size"):
        planned({"ladder": [{"label": "x", "change": "bench.cpus=1"}]}, "loader.batchsize=3")


def test_a_mixture_beside_the_study_is_found(tmp_path):
    (tmp_path / "mine.yaml").write_text("root: /x\nsources: [{name: bridge}]")
    (tmp_path / "s.yaml").write_text("mixture: mine.yaml\nruns: [{label: a}, {label: b}]")
    study = read_study(tmp_path / "s.yaml")
    assert (study.name, [row.label for row in study.rows()]) == ("s", ["a", "b"])
    assert len(plan(study, cpus=1)[0].job.mixture.sources) == 1


def test_rows_of_a_training_study_are_runs_of_the_command():
    study = study_from(
        {
            "train": "laq_debug",
            "overrides": ["training.steps=50", "data.root=/x"],
            "ladder": [
                {"label": "fast", "change": "training.lr=3e-3"},
                {"label": "fewer", "sources": 2},
            ],
        }
    )
    baseline, fast, fewer = plan(study, cpus=64)
    common = ("train", "experiment=laq_debug", "training.steps=50", "data.root=/x")
    assert baseline.command[-4:] == common
    assert fast.command[-5:] == (*common, "training.lr=3e-3")
    assert fast.backend == "train"
    assert fewer.known[0] == "invalid configuration"


def test_a_study_may_have_its_mixture_inline(tmp_path):
    names = ", ".join(f"{{name: s{number}, path: /x}}" for number in range(300))
    values = {"mixture": f"{{sources: [{names}]}}", "runs": [{"label": "one"}]}
    study = study_from(values, tmp_path)
    assert study.mixture.startswith("{")
