"""Reports of large runs, and of several in one page."""

import json
import time
from xml.etree import ElementTree

import numpy as np

from headrace.measure.report import write_comparison, write_run_report
from headrace.measure.report.bands import gathered
from headrace.measure.report.breakdown import stages
from headrace.measure.report.chart import spread
from headrace.measure.report.mixture import mixture_over_time, mixture_windows
from headrace.measure.report.plots import all_plots, throughput
from headrace.measure.report.runs import named_apart
from headrace.measure.runs import read_run
from tests.measure.made_runs import oxe29_names, write_lines, write_made_comparison, write_made_run
from tests.measure.report_pages import FIGURES, svg_files, texts


def test_29_datasets_are_twelve_bands_and_the_rest(tmp_path):
    names = oxe29_names()
    run = read_run(write_made_run(tmp_path / "run", names, weights=range(40, 11, -1)))
    for plot in (mixture_over_time(run), mixture_windows(run)):
        words = texts(ElementTree.fromstring(plot.file()))
        labels = [word for word in words if word.endswith("%") and " " in word]
        assert len(labels) == 13
        assert labels[0].startswith("other (17)")
        assert [label for label in labels if label.startswith(names[0])]
    served = texts(ElementTree.fromstring(all_plots([run])[3].file()))
    assert set(names) <= set(served)


def test_one_more_dataset_than_bands_keeps_its_name():
    bands, columns = gathered([f"d{i}" for i in range(13)], np.ones((2, 13)))
    assert [name for name, _ in bands] == [f"d{i}" for i in range(13)]
    assert columns.shape == (2, 13)


def test_labels_never_lie_over_each_other(tmp_path):
    run = read_run(write_made_run(tmp_path / "run", oxe29_names()))
    root = ElementTree.fromstring(mixture_over_time(run).file())
    rows = [
        float(node.get("y"))
        for node in root.iter("{http://www.w3.org/2000/svg}text")
        if float(node.get("x") or 0) > 700
    ]
    assert len(rows) == 13
    assert min(np.diff(sorted(rows))) >= 14


def test_labels_are_spread_inside_their_room_and_in_order():
    rng = np.random.default_rng(2)
    for _ in range(200):
        count = int(rng.integers(1, 12))
        wanted = sorted(rng.uniform(-20, 320, count))
        sizes = rng.choice([16.0, 32.0], count).tolist()
        tops = spread(wanted, sizes, 0, 400)
        assert len(tops) == count
        ends = [top + size for top, size in zip(tops, sizes, strict=True)]
        assert all(end <= top + 0.11 for end, top in zip(ends, tops[1:], strict=False))
        assert tops[0] >= 0
        assert ends[-1] <= 400.11


def test_100_000_batches_make_small_files_fast(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    names = oxe29_names()
    rng = np.random.default_rng(0)
    draws = rng.multinomial(64, [1 / 29] * 29, 200).tolist()
    rows = [json.dumps(dict(zip(names, draw, strict=True))) for draw in draws]
    with (folder / "batch_times.jsonl").open("w") as file:
        for i in range(100_000):
            file.write(
                f'{{"idx": {i}, "t_s": {i * 0.05 + 0.05:.2f}, "dt_s": 0.05, "is_warmup": false, '
                f'"dominant_dataset": "{names[i % 29]}", "dataset_counts": {rows[i % 200]}}}\n'
            )
    memory = [{"t_s": i / 2, "rss_mb": 300 + i % 7, "anon_mb": 200} for i in range(10_000)]
    write_lines(folder / "memory.jsonl", memory)
    begun = time.process_time()
    page = write_run_report(folder)
    assert time.process_time() - begun < 3
    assert page.stat().st_size < 700_000
    assert all(path.stat().st_size < 300_000 for path in svg_files(folder))
    assert "every 4,200" in page.read_text("utf-8")


def test_three_runs_are_compared_in_one_page(tmp_path):
    rates_asked = {"slow": 500, "fast": 1300, "middle": 900}
    folders = [
        write_made_run(tmp_path / name, rate=rate, first_s=0.05)
        for name, rate in rates_asked.items()
    ]
    out = write_comparison(folders, tmp_path / "pages" / "comparison.html")
    text = out.read_text("utf-8")
    assert "fast is fastest" in text
    assert "the next, middle" in text
    for name in (*FIGURES, "mixture_over_time_1", "mixture_over_time_3"):
        assert f'<figure id="{name}">' in text
    labels = texts(ElementTree.fromstring(throughput([read_run(f) for f in folders]).file()))
    assert set(rates_asked) <= set(labels)


def test_a_comparison_folder_stands_for_the_runs_in_it(tmp_path):
    folder = write_made_comparison(tmp_path / "cmp", repeats=2)
    page = write_run_report(folder)
    text = page.read_text("utf-8")
    assert page == folder / "report.html"
    assert "6 runs compared" in text
    assert "Repeated runs" in text
    assert "headrace is fastest" in text
    for name in ("headrace_1", "tf.data_2", "torch_1"):
        assert f">{name}" in text
        assert (folder / name / "mixture_over_time.svg").exists()
    assert "Without stage times: tf.data_1" in text


def test_runs_that_cannot_be_read_are_named_and_the_others_are_shown(tmp_path):
    good = write_made_run(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    out = write_comparison([good, tmp_path / "gone", tmp_path / "empty"], tmp_path / "c.html")
    text = out.read_text("utf-8")
    assert "no such run folder" in text
    assert "is not a run folder" in text
    assert '<figure id="throughput">' in text


def test_a_run_given_twice_is_shown_once_and_equal_names_are_told_apart(tmp_path):
    a = write_made_run(tmp_path / "x" / "run", name="same")
    b = write_made_run(tmp_path / "y" / "run", name="same")
    out = write_comparison([a, b, a / "." / "..", a], tmp_path / "c.html").read_text("utf-8")
    assert "2 runs compared" in out
    assert {run.label for run in named_apart([read_run(a), read_run(b)])} == {"x/run", "y/run"}


def test_a_rival_without_stages_budget_or_limit_stands_beside_headrace(tmp_path):
    own = write_made_run(tmp_path / "headrace")
    rival = write_made_run(
        tmp_path / "rival", backend="rival", stages=False, budget_mb=None, limit=None, mixture=None
    )
    runs = [read_run(own), read_run(rival)]
    assert "Without stage times: rival" in stages(runs).caption
    for plot in all_plots(runs):
        assert plot.drawing is not None
        ElementTree.fromstring(plot.file())


def test_runs_of_one_backend_share_its_colour_and_differ_in_dashes(tmp_path):
    folder = write_made_comparison(tmp_path / "cmp", repeats=2)
    runs = [read_run(path) for path in sorted(folder.iterdir()) if path.is_dir()]
    root = ElementTree.fromstring(throughput(runs).file())
    lines = [node for node in root.iter() if (node.get("class") or "").startswith("line ")]
    colour = [node.get("class") for node in lines[:6]]
    assert colour[0] == colour[1] != colour[2] == colour[3] != colour[4] == colour[5]
    assert len({node.get("stroke-dasharray") for node in lines[:6]}) == 6


def test_many_runs_have_labels_that_fit(tmp_path):
    folders = [write_made_run(tmp_path / f"run{i:02}", batches=40, seed=i) for i in range(30)]
    plot = throughput([read_run(folder) for folder in folders])
    assert plot.drawing is not None
    root = ElementTree.fromstring(plot.file())
    nodes = [n for n in root.iter("{http://www.w3.org/2000/svg}text") if "run" in (n.text or "")]
    assert len(nodes) == 30
    assert max(float(node.get("y")) for node in nodes) < plot.drawing.height
