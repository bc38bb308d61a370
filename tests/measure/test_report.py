"""Reports of runs: every file is written, and nothing from the data is taken for markup."""

import json
import sys
from itertools import pairwise

import pytest

from headrace.errors import UsageError
from headrace.measure.report import write_comparison, write_run_report
from headrace.measure.report.comparison import named_apart
from headrace.measure.report.figures import (
    mixture_over_time,
    mixture_windows,
    run_figures,
    shares,
    stages,
    throughput,
)
from headrace.measure.results import read_run
from tests.measure.made_runs import oxe29_names, write_lines, write_made_comparison, write_made_run
from tests.measure.report_pages import FIGURES, HOSTILE, MIXTURES, Page, parsed, svg_files, texts


def test_a_run_gets_its_plots_its_mixture_files_and_a_page(tmp_path):
    folder = write_made_run(tmp_path / "run", oxe29_names())
    page = write_run_report(folder)
    assert page == folder / "report.html"
    assert {path.name for path in (folder / "plots").iterdir()} == {f"{n}.svg" for n in FIGURES}
    for name in (*(f"{name}.svg" for name in MIXTURES), "mixture_summary.txt"):
        assert (folder / name).exists()
    assert Page(page).figures == [*FIGURES, *MIXTURES]
    for path in svg_files(folder):
        text = path.read_text("utf-8")
        assert [node for node in parsed(text).iter() if node.tag.endswith("}text")], path
        assert "nan" not in text.lower().replace("nano", ""), path
        assert "prefers-color-scheme:dark" in text


def test_the_page_is_one_file_that_runs_nothing_and_needs_nothing_from_outside(tmp_path):
    page = Page(write_run_report(write_made_run(tmp_path / "run")))
    assert not {"script", "img", "link", "iframe", "object"} & set(page.tags)
    outside = [v for name, v in page.attributes if name in ("src", "href") and v[0] != "#"]
    assert not outside
    assert any("default-src 'none'" in (value or "") for _, value in page.attributes)
    assert "@media (prefers-color-scheme:dark)" in page.source
    assert "--paper:#14181d" in page.source  # dark
    assert "--paper:#ffffff" in page.source


def test_the_page_is_accessible(tmp_path):
    page = Page(write_run_report(write_made_run(tmp_path / "run")))
    assert page.tags.count("figure") == page.tags.count("figcaption") == page.tags.count("svg") == 7
    for attribute in (("lang", "en"), ("scope", "col"), ("scope", "row"), ("role", "img")):
        assert attribute in page.attributes


def test_ids_in_a_page_are_unique(tmp_path):
    folders = [write_made_run(tmp_path / name) for name in ("a", "b")]
    page = Page(write_comparison(folders, tmp_path / "out.html"))
    names = [value for name, value in page.attributes if name == "id"]
    assert len(names) == len(set(names)) > 8
    for target in (value for name, value in page.attributes if name == "href"):
        assert target.removeprefix("#") in names


def test_writing_again_gives_the_same_bytes_and_leaves_nothing_aside(tmp_path):
    folder = write_made_run(tmp_path / "run")
    write_run_report(folder)
    first = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write_run_report(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == first


def test_a_page_that_cannot_be_written_says_what_to_do(tmp_path):
    folder = write_made_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="page.html") as caught:
        write_comparison([folder], tmp_path / "file" / "page.html")
    assert "--out" in caught.value.remedy


def test_without_the_extra_the_summary_is_written_and_the_error_names_the_remedy(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    folder = write_made_run(tmp_path / "run")
    with pytest.raises(UsageError, match="report") as caught:
        write_run_report(folder)
    assert caught.value.remedy == "pip install 'headrace[plots]'"
    assert (folder / "mixture_summary.txt").exists()
    assert not (folder / "report.html").exists()


# ---- words from the data


def test_names_and_words_from_the_data_are_escaped_everywhere(tmp_path):
    folder = write_made_run(
        tmp_path / "run",
        HOSTILE,
        name="<img src=x onerror=alert(1)>",
        backend="<b>other</b>",
        status="failed",
        cause="</td><script>alert(2)</script>",
        shuffle="<i>{{ 7 * 7 }}",
        stages={"<u>read": {"busy_s": 1.0, "waiting_s": 2.0}},
        machine={"</pre><script>": "alert(3)"},
    )
    (folder / "config.yaml").write_text("a: </pre><script>alert(4)</script>\n")
    (folder / "log.txt").write_text("\x1b[31m</details><script>alert(5)</script>\n")
    write_run_report(folder)
    write_comparison([folder, folder / "..", write_made_run(tmp_path / "b")], tmp_path / "c.html")
    for path in (folder / "report.html", tmp_path / "c.html"):
        page = Page(path)
        assert not {"script", "img", "i", "u"} & set(page.tags)
        assert not [name for name, _ in page.attributes if name.startswith("on")]
        for number in range(1, 6):
            assert f"alert({number})" in page.text, number
        assert "{{ 7 * 7 }}" in page.text
        assert "\u202e" not in page.text
    for path in svg_files(folder):
        root = parsed(path.read_text("utf-8"))
        assert not [node for node in root.iter() if node.tag.endswith(("}script", "}b", "}img"))]
    words = texts(shares([read_run(folder)]))
    assert {"<script>alert(1)</script>", 'a&b"c', "$x$"} <= set(words)


def test_a_name_cannot_forge_a_line_of_the_summary(tmp_path):
    folder = write_made_run(tmp_path / "run", ("a\nmeasured_batches: 7", "b"))
    write_run_report(folder)
    lines = (folder / "mixture_summary.txt").read_text("utf-8").splitlines()
    found = [line for line in lines if line.startswith("measured_batches")]
    assert found == ["measured_batches: 380"]


def test_a_page_says_which_run_it_is_how_long_and_how_it_was_measured(tmp_path):
    machine = {
        "cpu": "AMD EPYC 9654", "cores": 2, "memory_bytes": 25_276_518_400, "cgroup": {},
        "versions": {"a": "1", "b": "2"},
    }  # fmt: skip
    validations = {"validations": 3, "validation_start_s": 0.25, "validation_start_max_s": 0.5}
    folder = write_made_run(tmp_path / "seven", machine=machine, **validations)
    page = Page(write_run_report(folder))
    assert "seven · 380 batches measured after 20 of warm-up · AMD EPYC 9654, 2 cores" in page.words
    assert "shuffle: global" in page.words
    for line in (
        "memory_bytes  25.3 GB",
        "cgroup        -",
        "versions      a 1, b 2",
        "validations             3, started in 250 ms (mean), 500 ms at most",
        "batch_size: 64",
    ):
        assert line in page.text


# ---- figures


def test_shares_and_stages_show_their_figures(tmp_path):
    busy = {"read": {"busy_s": 1.0, "waiting_s": 0.0}, "decode": {"busy_s": 9.0, "waiting_s": 0.0}}
    idle = {"waiting for work": {"busy_s": 0.0, "waiting_s": 2.0}}
    mixture = {"a": {"asked": 0.25, "served": 0.2}, "b": {"asked": 0.75, "served": 0.8}}
    run = read_run(write_made_run(tmp_path / "run", stages={**busy, **idle}, mixture=mixture))
    assert {"a", "25% / 20%", "b", "75% / 80%", " requested"} <= set(texts(shares([run])))
    # No stage has both times: one bar each.
    assert {"1 s", "9 s", "2 s", "waiting for work"} <= set(texts(stages([run])))
    both = stages([read_run(write_made_run(tmp_path / "both"))])
    assert {"37.9 s / 800 ms", " busy", " waiting"} <= set(texts(both))


def test_29_datasets_are_twelve_bands_and_the_rest_with_labels_apart(tmp_path):
    names = oxe29_names()
    run = read_run(write_made_run(tmp_path / "run", names, weights=range(40, 11, -1)))
    for plot in (mixture_over_time(run), mixture_windows(run)):
        root = parsed(plot.svg.file())
        nodes = [n for n in root.iter() if n.tag.endswith("}text") and float(n.get("x") or 0) > 700]
        labels = ["".join(node.itertext()) for node in nodes]
        assert len(labels) == 13
        assert labels[0].startswith("other (17)")
        assert [label for label in labels if label.startswith(names[0])]
        places = sorted(float(node.get("y")) for node in nodes)
        assert all(b - a >= 14 for a, b in pairwise(places))
    assert set(names) <= set(texts(shares([run])))


def test_runs_of_one_backend_share_its_colour_and_differ_in_dashes(tmp_path):
    folder = write_made_comparison(tmp_path / "cmp", repeats=2)
    runs = named_apart([read_run(path) for path in sorted(folder.iterdir()) if path.is_dir()])
    root = parsed(throughput(runs).svg.file())
    looks = {}
    for group in root.iter("{http://www.w3.org/2000/svg}g"):
        title, path = group.find("{*}title"), group.find("{*}path")
        if title is not None and path is not None:
            style = dict(part.split(":", 1) for part in path.get("style").split(";"))
            looks[title.text] = (style["stroke"], style.get("stroke-dasharray"))
    assert list(looks) == [run.label for run in runs]
    colours = [colour for colour, _ in looks.values()]
    assert colours[0] == colours[1] != colours[2] == colours[3] != colours[4] == colours[5]
    assert len({dash for _, dash in looks.values()}) == 6


def test_many_runs_have_labels_that_fit(tmp_path):
    folders = [write_made_run(tmp_path / f"run{i:02}", batches=40, seed=i) for i in range(30)]
    plot = throughput([read_run(folder) for folder in folders])
    nodes = [n for n in parsed(plot.svg.file()).iter() if n.tag.endswith("}text")]
    places = [float(n.get("y")) for n in nodes if (n.text or "").startswith("run")]
    assert len(places) == 30
    assert max(places) < plot.svg.height


def test_100_000_batches_make_small_files(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    names = oxe29_names()
    counts = [json.dumps({n: (i * 7 + k) % 5 for k, n in enumerate(names)}) for i in range(200)]
    with (folder / "batch_times.jsonl").open("w") as file:
        for i in range(100_000):
            file.write(
                f'{{"idx": {i}, "t_s": {i * 0.05 + 0.05:.2f}, "dt_s": 0.05, "is_warmup": false, '
                f'"dominant_dataset": "{names[i % 29]}", "dataset_counts": {counts[i % 200]}}}\n'
            )
    memory = [{"t_s": i / 2, "rss_mb": 300 + i % 7, "anon_mb": 200} for i in range(10_000)]
    write_lines(folder / "memory.jsonl", memory)
    page = write_run_report(folder)
    assert page.stat().st_size < 700_000
    assert all(path.stat().st_size < 300_000 for path in svg_files(folder))
    assert "every 4,200" in page.read_text("utf-8")


# ---- several runs


def test_three_runs_are_compared_in_one_page(tmp_path):
    rates = {"slow": 500, "fast": 1300, "middle": 900}
    folders = [write_made_run(tmp_path / n, rate=r, first_s=0.05) for n, r in rates.items()]
    page = Page(write_comparison(folders, tmp_path / "pages" / "comparison.html"))
    assert page.figures == [*FIGURES, *(f"mixture_over_time_{n}" for n in (1, 2, 3))]
    lead = next(word for word in page.words if "fastest" in word)
    assert lead.index("fast") < lead.index("middle")
    assert "slow" not in lead
    assert set(rates) <= set(texts(throughput([read_run(folder) for folder in folders])))


def test_a_comparison_folder_stands_for_the_runs_in_it(tmp_path):
    folder = write_made_comparison(tmp_path / "cmp", repeats=2)
    page = Page(write_run_report(folder))
    assert "6 runs compared" in page.words
    assert "Repeated runs" in page.words
    assert "Switch and stay" in page.words
    assert "The ten slowest batches" not in page.words
    for name in ("headrace_1", "tf.data_2", "torch_1"):
        assert name in page.words
        assert (folder / name / "mixture_over_time.svg").exists()
    assert "Without stage times: tf.data_1" in page.text


def test_one_round_has_no_spread_to_show(tmp_path):
    page = Page(write_run_report(write_made_comparison(tmp_path / "cmp", repeats=1)))
    assert "Repeated runs" not in page.words


def test_runs_that_cannot_be_read_are_named_and_the_others_are_shown(tmp_path):
    good = write_made_run(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    page = Page(
        write_comparison([good, tmp_path / "gone", tmp_path / "empty"], tmp_path / "c.html")
    )
    problems = [word for word in page.words if "run folder" in word]
    assert ["gone" in problems[0], "empty" in problems[1]] == [True, True]
    assert "throughput" in page.figures


def test_a_run_given_twice_is_shown_once_and_equal_names_are_told_apart(tmp_path):
    a = write_made_run(tmp_path / "x" / "run", name="same")
    b = write_made_run(tmp_path / "y" / "run", name="same")
    page = Page(write_comparison([a, b, a / "." / "..", a], tmp_path / "c.html"))
    assert "2 runs compared" in page.words
    assert {run.label for run in named_apart([read_run(a), read_run(b)])} == {"x/run", "y/run"}


def test_a_baseline_without_stages_budget_or_limit_stands_beside_headrace(tmp_path):
    own = write_made_run(tmp_path / "headrace")
    other = write_made_run(
        tmp_path / "other", backend="other", stages=False, budget_mb=None, limit=None, mixture=None
    )
    plots = run_figures([read_run(own), read_run(other)])
    assert not [plot.name for plot in plots if plot.empty]
    assert "Without stage times: other" in plots[-1].caption
