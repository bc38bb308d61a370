"""Reports of runs: right numbers, nothing from the data unescaped, damage named, the rest shown."""

import json
import math
import random
import time
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from headrace.errors import DataError, UsageError
from headrace.measure.report import write_comparison, write_run_report
from headrace.measure.report.axis import Axis, round_ticks
from headrace.measure.report.bands import gathered
from headrace.measure.report.batches import Batches
from headrace.measure.report.breakdown import stages
from headrace.measure.report.chart import spread
from headrace.measure.report.mixture import mixture_over_time, mixture_summary, mixture_windows
from headrace.measure.report.plots import all_plots, throughput
from headrace.measure.report.points import quantile_curve, rates, reduced, rolling_shares
from headrace.measure.report.quantities import amount, megabytes, seconds, share
from headrace.measure.report.records import finite, finite_column
from headrace.measure.report.run import read_run
from headrace.measure.report.runs import Range, named_apart
from headrace.measure.report.svg import Drawing, escape, shortened
from headrace.measure.report.verdict import comparison_verdict, run_verdict
from tests.measure.made_runs import (
    batch_record,
    oxe29_names,
    write_lines,
    write_made_comparison,
    write_made_run,
)

FIGURES = ("throughput", "batch_times", "memory", "shares", "stages")
MIXTURES = ("mixture_over_time", "mixture_windows_every_stride")
HOSTILE = ("<script>alert(1)</script>", 'a&b"c', "it's\x00\x1b[31m", "up\u202edown", "\ud800")


class Page(HTMLParser):
    """Elements, attributes and words of a page, as a browser would take them apart."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.attributes = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.words.append(data)


def svg_files(folder):
    return sorted(folder.rglob("*.svg"))


def parsed(path):
    root = ElementTree.fromstring(path.read_text("utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return root


def texts(root):
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


# ---- what is written


def test_a_run_gets_its_plots_its_mixture_files_and_a_page(tmp_path):
    folder = write_made_run(tmp_path / "run")
    page = write_run_report(folder)
    assert page == folder / "report.html"
    expected = {f"{name}.svg" for name in FIGURES}
    assert {path.name for path in (folder / "plots").iterdir()} == expected
    for name in (*MIXTURES, "mixture_summary"):
        assert list(folder.glob(f"{name}.*")), name
    text = page.read_text("utf-8")
    for name in (*FIGURES, *MIXTURES):
        assert f'<figure id="{name}">' in text


def test_every_svg_is_xml_with_a_title_a_view_box_and_labels(tmp_path):
    folder = write_made_run(tmp_path / "run", oxe29_names())
    write_run_report(folder)
    assert len(svg_files(folder)) == 7
    for path in svg_files(folder):
        root = parsed(path)
        assert root.get("viewBox"), path
        assert root.get("aria-label"), path
        assert texts(root), path
        assert "nan" not in path.read_text("utf-8").lower().replace("nano", ""), path


def test_the_page_needs_nothing_from_outside_and_runs_nothing(tmp_path):
    page = Page(write_run_report(write_made_run(tmp_path / "run")).read_text("utf-8"))
    assert not {"script", "img", "link", "iframe", "object"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "href")]
    assert any("default-src 'none'" in (value or "") for _, value in page.attributes)


def test_the_page_is_accessible(tmp_path):
    page = Page(write_run_report(write_made_run(tmp_path / "run")).read_text("utf-8"))
    assert page.tags.count("figure") == page.tags.count("figcaption") == page.tags.count("svg") == 7
    assert ("lang", "en") in page.attributes
    assert ("scope", "col") in page.attributes
    assert ("scope", "row") in page.attributes
    assert [value for name, value in page.attributes if name == "aria-label"]


def test_patterns_of_different_figures_in_one_page_do_not_share_names(tmp_path):
    folders = [write_made_run(tmp_path / name) for name in ("a", "b")]
    page = Page(write_comparison(folders, tmp_path / "out.html").read_text("utf-8"))
    names = [value for name, value in page.attributes if name == "id"]
    assert len(names) == len(set(names)) > 8


def test_writing_again_gives_the_same_bytes_and_leaves_nothing_aside(tmp_path):
    folder = write_made_run(tmp_path / "run")
    write_run_report(folder)
    first = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write_run_report(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == first


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path):
    folder = write_made_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written.*--out"):
        write_comparison([folder], tmp_path / "file" / "page.html")


# ---- nothing from the data is taken for markup


def test_names_and_words_from_the_data_are_escaped_everywhere(tmp_path):
    folder = write_made_run(
        tmp_path / "run",
        HOSTILE,
        name="<img src=x onerror=alert(1)>",
        backend="<b>rival</b>",
        status="failed",
        cause="</td><script>alert(2)</script>",
        shuffle="<i>",
        stages={"<u>read": {"busy_s": 1.0, "waiting_s": 2.0}},
        machine={"</pre><script>": "alert(3)"},
    )
    (folder / "config.yaml").write_text("a: </pre><script>alert(4)</script>\n")
    (folder / "log.txt").write_text("\x1b[31m</details><script>alert(5)</script>\n")
    write_run_report(folder)
    write_comparison([folder, folder / "..", write_made_run(tmp_path / "b")], tmp_path / "c.html")
    for page in (folder / "report.html", tmp_path / "c.html"):
        found = Page(page.read_text("utf-8"))
        assert not {"script", "img", "b", "i", "u"} & set(found.tags) - {"b"}
        assert not [name for name, _ in found.attributes if name.startswith("on")]
        words = "".join(found.words)
        for number in range(1, 6):
            assert f"alert({number})" in words, number
        assert "\u202e" not in words
    for path in svg_files(folder):
        root = parsed(path)
        assert not [node for node in root.iter() if node.tag.endswith(("script", "}b", "}img"))]
    assert "<script>alert(1)</script>" in texts(parsed(folder / "plots" / "shares.svg"))
    assert 'a&b"c' in texts(parsed(folder / "plots" / "shares.svg"))


def test_a_name_cannot_forge_a_line_of_the_summary(tmp_path):
    folder = write_made_run(tmp_path / "run", ("a\nmeasured_batches: 7", "b"))
    write_run_report(folder)
    lines = (folder / "mixture_summary.txt").read_text("utf-8").splitlines()
    assert [line for line in lines if line.startswith("measured_batches")] == [
        "measured_batches: 380"
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_escaped_text_comes_back_from_an_xml_reader(text):
    inside = escape(text)
    root = ElementTree.fromstring(f'<a b="{inside}">{inside}</a>'.encode())
    assert root.text == root.get("b")
    assert root.text.replace("\ufffd", "") == "".join(c for c in text if c.isprintable())


# ---- damaged and incomplete runs


def test_half_a_line_at_the_end_is_named_and_the_rest_is_shown(tmp_path):
    folder = write_made_run(tmp_path / "run", batches=50, warmup=10)
    for name in ("batch_times.jsonl", "memory.jsonl"):
        text = (folder / name).read_text()
        (folder / name).write_text(text[: len(text) - 20])
    (folder / "result.json").unlink()
    run = read_run(folder)
    assert len(run.batches) == 49
    assert run.status == "incomplete"
    problems = " ".join(run.problems)
    assert "batch_times.jsonl ends in half a line" in problems
    assert "the 49 whole records are shown" in problems
    assert "result.json is missing" in problems
    page = write_run_report(folder).read_text("utf-8")
    assert "half a line" in page
    assert '<figure id="throughput">' in page


def test_a_killed_run_has_the_figures_that_follow_from_its_batches(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    times = [9.0, 0.1, 0.2, 0.3]
    records = [
        batch_record(i, sum(times[: i + 1]), dt, {"a": 10}, warmup=i == 0)
        for i, dt in enumerate(times)
    ]
    write_lines(folder / "batch_times.jsonl", records)
    numbers = read_run(folder).numbers
    assert numbers["samples_per_s"] == pytest.approx(30 / 0.6)
    assert numbers["batches_per_s"] == pytest.approx(5)
    assert numbers["p50_s"] == pytest.approx(0.2)
    assert numbers["max_s"] == pytest.approx(0.3)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda f: (f / "result.json").write_text("{"),
        lambda f: (f / "result.json").write_text("[]"),
        lambda f: (f / "result.json").write_text("[" * 100_000),
        lambda f: (f / "result.json").write_bytes(b"\xff\xfe\x00"),
        lambda f: (f / "batch_times.jsonl").write_bytes(b"\x00" * 5000),
        lambda f: (f / "batch_times.jsonl").write_text('[1]\n"a"\n{}\n{"idx": {}}\n'),
        lambda f: (f / "memory.jsonl").write_text('{"t_s": "late"}\n{"t_s": 1}\n'),
        lambda f: (f / "memory.jsonl").unlink(),
        lambda f: (f / "batch_times.jsonl").unlink(),
        lambda f: (f / "config.yaml").write_bytes(b"\xff\x00"),
        lambda f: ((f / "log.txt").unlink(), (f / "log.txt").mkdir()),
    ],
)
def test_any_one_damaged_file_leaves_a_report_of_the_rest(tmp_path, spoil):
    folder = write_made_run(tmp_path / "run", batches=30, warmup=5)
    spoil(folder)
    page = write_run_report(folder).read_text("utf-8")
    assert page.count("<figure") >= 2
    for path in svg_files(folder):
        parsed(path)


def test_values_that_are_no_numbers_are_left_out_not_drawn(tmp_path):
    folder = write_made_run(
        tmp_path / "run", batches=30, samples_per_s=None, p50_s="fast", peak_rss_mb=math.nan,
        budget_mb=math.inf, limit_ratio=None, mixture={"a": {"asked": None}, "b": 3, "c": {}},
        stages={"read": {"busy_s": None, "waiting_s": math.nan}, "decode": None},
    )  # fmt: skip
    lines = (folder / "batch_times.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    odd = (None, math.nan, math.inf, "soon", 1e300, -1, 10**400, True, [], {})
    for record, value in zip(records, odd, strict=False):
        record.update(idx=value, t_s=value, dt_s=value, is_warmup=value, dominant_dataset=value)
        record["dataset_counts"] = {"a": value}
    write_lines(folder / "batch_times.jsonl", records)
    write_run_report(folder)
    for path in svg_files(folder):
        parsed(path)
        text = path.read_text("utf-8")
        assert "NaN" not in text
        assert "inf" not in text.replace("info", ""), path


def test_a_run_without_a_batch_says_so_and_still_writes_every_file(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("batch_times.jsonl", "memory.jsonl"):
        (folder / name).write_text("")
    page = write_run_report(folder).read_text("utf-8")
    assert "Nothing was measured." in page
    assert len(svg_files(folder)) == 7
    assert all("Nothing to show" in path.read_text("utf-8") for path in svg_files(folder))
    assert "measured_batches: 0" in (folder / "mixture_summary.txt").read_text()


@pytest.mark.parametrize("batches", [1, 2, 3, 5, 12])
def test_the_shortest_runs_are_drawn(tmp_path, batches):
    folder = write_made_run(tmp_path / "run", batches=batches, warmup=0)
    assert write_run_report(folder).read_text("utf-8").count("<figure") == 7
    for path in svg_files(folder):
        parsed(path)
    assert read_run(folder).batches.idx.tolist() == list(range(batches))


def test_a_run_of_warm_up_only_shows_its_throughput(tmp_path):
    folder = write_made_run(tmp_path / "run", batches=6, warmup=6, first_s=0.1)
    page = write_run_report(folder).read_text("utf-8")
    assert '<figure id="throughput">' in page
    assert '<figure id="batch_times">' not in page


def test_batches_that_all_took_equally_long_or_no_time_are_drawn(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for dt in (0.0, 0.25):
        records = [batch_record(i, i * dt, dt, {"a": 4}) for i in range(40)]
        write_lines(folder / "batch_times.jsonl", records)
        write_run_report(folder)
        for path in svg_files(folder):
            parsed(path)


def test_a_folder_that_is_no_run_is_an_error_that_says_what_one_is(tmp_path):
    with pytest.raises(DataError, match="no such run folder.*result.json"):
        write_run_report(tmp_path / "none")
    with pytest.raises(DataError, match="is not a run folder.*headrace bench"):
        write_run_report(tmp_path)
    with pytest.raises(DataError, match="no such run folder"):
        write_comparison([tmp_path / "none"], tmp_path / "out.html")
    with pytest.raises(DataError, match="no run in nothing"):
        write_comparison([], tmp_path / "out.html")
    (tmp_path / "result.json").write_text('{"comparison": {"a": {}}}')
    with pytest.raises(DataError, match="no run in '.*Give one or more"):
        write_run_report(tmp_path)


# ---- the numbers


def made_batches(rows, warmup=0):
    return [
        batch_record(i, float(i + 1), 1.0, counts, warmup=i < warmup)
        for i, counts in enumerate(rows)
    ]


def test_the_summary_counts_right_on_data_made_by_hand(tmp_path):
    rows = [
        {"x": 9},  # warm-up: counts for nothing
        {"a": 3, "b": 1},
        {"a": 2, "b": 2, "c": 0},  # a tie: the record says which
        {"b": 4},
        {"b": 3, "a": 1},
        {"c": 4},
    ]
    folder = tmp_path / "run"
    folder.mkdir()
    write_lines(folder / "batch_times.jsonl", made_batches(rows, warmup=1))
    mixture = {"a": {"asked": 0.5, "served": None}, "b": {"asked": 0.5, "served": 0.45}}
    (folder / "result.json").write_text(json.dumps({"name": "hand", "mixture": mixture}))
    lines = mixture_summary(read_run(folder)).splitlines()
    assert lines[:6] == [
        "run: hand",
        "measured_batches: 5",
        "measured_samples: 20",
        "datasets: 4",
        "unique_dominant_datasets: 3",
        "dominant_switch_rate: 0.5000",  # a a b b c: two of four
    ]
    assert lines[6:10] == [
        "top_datasets:",
        "  a: dominant in 2 (40.00%)",
        "  b: dominant in 2 (40.00%)",
        "  c: dominant in 1 (20.00%)",
    ]
    table = {line.split()[0]: line.split()[1:] for line in lines[11:]}
    assert table["a"] == ["50.000%", "30.000%", "-20.000%"]  # served as counted
    assert table["b"] == ["50.000%", "45.000%", "-5.000%"]  # served as the result states it
    assert table["c"] == ["-", "20.000%", "-"]


def test_records_without_a_dominant_dataset_get_the_one_with_most_samples():
    records = made_batches([{"a": 1, "b": 3}, {"a": 5}])
    for record in records:
        record["dominant_dataset"] = None
    assert Batches.of(records).dominant.tolist() == ["b", "a"]


def test_records_without_counts_count_for_their_dominant_dataset():
    batches = Batches.of([{"dominant_dataset": "a"}, {"dominant_dataset": "b"}, {}])
    assert batches.names == ("a", "b")
    assert batches.counts.tolist() == [[1, 0], [0, 1], [0, 0]]


def test_hostile_records_with_many_names_do_not_make_a_huge_table():
    batches = Batches.of([{"dataset_counts": {f"n{i}": 1, "a": 7}} for i in range(3000)])
    assert batches.counts.shape == (3000, 512)
    assert batches.counts.sum() == 3000 * 8
    assert batches.names[0] == "a"


def test_the_fast_way_to_read_numbers_finds_the_same_as_the_plain_one():
    plain = [1, 2.5, -3, math.nan, math.inf, -math.inf, 1e300, 10**15, 10**16, 0]
    for values in (plain, [*plain, None], [*plain, 10**400], [*plain, "1", True, []], []):
        expected = [math.nan if (n := finite(v)) is None else n for v in values]
        np.testing.assert_array_equal(finite_column(values), expected)


@pytest.mark.parametrize("window", [1, 2, 3, 7, 50])
def test_the_rolling_mean_is_the_mean_of_the_batches_around(window):
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 9, (20, 3)).astype(float)
    shares = rolling_shares(counts, window)
    for row in range(20):
        start = row - window // 2
        around = counts[max(start, 0) : min(start + window, 20)].sum(axis=0)
        assert shares[row] == pytest.approx(around / around.sum())


def test_a_stretch_without_samples_has_no_shares():
    assert rolling_shares(np.zeros((4, 2)), 2).tolist() == [[0, 0]] * 4


def test_throughput_steps_hold_all_samples():
    rng = np.random.default_rng(1)
    t_s = np.cumsum(rng.exponential(0.1, 1000))
    times, values = rates(t_s, np.full(1000, 64.0))
    assert len(times) <= 151
    assert (np.diff(np.concatenate([[0.0], times])) * values).sum() == pytest.approx(64_000)
    assert times[-1] == t_s[-1]


def test_a_stall_is_a_dip_in_the_throughput():
    t_s = np.arange(1.0, 101) / 10
    t_s[50:] += 20  # one batch takes 20 seconds
    times, values = rates(t_s, np.ones(100))
    assert values.min() < 0.25
    assert np.median(values) == pytest.approx(10)
    assert times[values.argmin()] > 20


def test_batches_received_in_one_instant_do_not_divide_by_zero():
    times, values = rates(np.array([1.0, 1.0, 1.0, 2.0]), np.ones(4))
    assert times.tolist() == [1.0, 2.0]
    assert values.tolist() == [1.0, 3.0]


def test_fewer_points_keep_the_peaks_and_the_order():
    y = np.sin(np.arange(100_000.0) / 3000)
    y[77_777], y[12_345] = 9, -9
    few_x, few_y = reduced(np.arange(100_000.0), y, 600)
    assert len(few_x) <= 600
    assert (few_y.max(), few_y.min()) == (9, -9)
    assert (np.diff(few_x) > 0).all()
    x = np.array([0.0, 1.0, np.nan, 3.0])
    assert reduced(x, np.array([1.0, np.nan, 1.0, 2.0]))[0].tolist() == [0.0, 3.0]


def test_the_distribution_is_that_of_the_values():
    values, parts = quantile_curve(np.array([3.0, 1.0, np.nan, 2.0, 2.0]))
    assert values.tolist() == [1, 2, 2, 3]
    assert parts.tolist() == [0.25, 0.5, 0.75, 1.0]
    many = np.random.default_rng(0).exponential(1.0, 100_000)
    values, parts = quantile_curve(many)
    assert len(values) <= 600
    assert values[-1] == many.max()
    for percent in (50, 90, 99):
        assert np.interp(percent / 100, parts, values) == pytest.approx(
            np.percentile(many, percent), rel=0.01
        )


# ---- large runs


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


# ---- several runs


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


# ---- verdicts and words


def made_run(tmp_path, **values):
    return read_run(write_made_run(tmp_path / "run", **values))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"limit_ratio": 0.97}, "At the decode limit (97%)"),
        ({"limit_ratio": 0.88}, "Near the decode limit (88%)"),
        ({"limit_ratio": 0.4}, "Reaches 40% of the decode limit"),
        ({"stall_s_per_step": 0.0001, "mean_s": 0.1}, "hardly waits"),
        ({"stall_s_per_step": 0.02, "mean_s": 0.1}, "waits 20 ms of 100 ms for data (20%)"),
        ({"stall_s_per_step": 0.1, "mean_s": 0.1}, "waits 100 ms of 100 ms for data (100%)"),
        (
            {"stall_s_per_step": 0.1, "mean_s": 0.1, "simulated_step_ms": 0, "limit_ratio": 0.93},
            "Near the decode limit (93%).",
        ),
        ({"p50_s": 0.01, "p99_s": 0.5}, "one batch in a hundred takes 50 times"),
        ({"status": "failed", "cause": "killed, out of memory."}, "Failed: killed, out of memory."),
    ],
)
def test_the_verdict_says_in_words_what_the_figures_mean(tmp_path, values, words):
    said = run_verdict(made_run(tmp_path, **values))
    assert words in said
    if "simulated_step_ms" in values:  # there was no step that could wait
        assert "waits" not in said


def test_repeats_whose_ranges_overlap_name_no_winner(tmp_path):
    def figures(low, median, high):
        return {"samples_per_s": Range(median, low, high, 3)}

    apart = {"a": figures(90, 100, 110), "b": figures(50, 60, 70)}
    assert comparison_verdict([], apart).startswith("a is fastest: 1.67 times the next, b")
    close = {"a": figures(90, 100, 110), "b": figures(80, 97, 105)}
    assert "as far as these runs can tell" in comparison_verdict([], close)
    assert "nothing to compare" in comparison_verdict([made_run(tmp_path)], {})


def test_figures_read_well():
    assert [seconds(v) for v in (0, 1e-7, 0.00123, 0.9999, 61.3)] == [
        "0 s", "0.1 µs", "1.23 ms", "1 s", "61.3 s",
    ]  # fmt: skip
    assert [amount(v) for v in (0, 1234.5, 99.96, 0.00012, 1e-9)] == [
        "0", "1,234", "100", "0.00012", "1e-09",
    ]  # fmt: skip
    assert [megabytes(v) for v in (None, 999.4, 1000)] == ["-", "999 MB", "1 GB"]
    assert share(1.0) == "100%"
    assert shortened("abcdefghij", 5) == "ab…ij"


def test_ticks_are_round_and_inside():
    assert round_ticks(0, 0.07, 6) == pytest.approx([0, 0.02, 0.04, 0.06])
    for low, high in ((0, 1), (3, 3.0001), (0, 9e14), (-5, 5), (0, 1e-6)):
        ticks = round_ticks(low, high, 6)
        assert 2 <= len(ticks) <= 8
        assert all(low - 1e-9 <= tick <= high * (1 + 1e-9) for tick in ticks)
    for low, high in ((0.05, 0.07), (0.001, 10), (1e-9, 1e9), (1, 1)):
        axis = Axis.around(low, high, 0, 100, "log")
        ticks = axis.ticks(seconds)
        assert 2 <= len(ticks) <= 10, (low, high, ticks)
        places = [axis.at(value) for value, _ in ticks]
        assert places == sorted(places)


def test_lines_markers_and_bands_differ_without_colour():
    def shapes(draw):
        found = []
        for style in range(12):
            drawing = Drawing("x", 10, 10, "x")
            draw(drawing, style)
            text = drawing.render()
            for number in range(8):
                text = text.replace(f'"f{number}', '"f').replace(f" s{number}", " s")
            found.append(text.replace(f"x-{style}", "x"))
        return found

    def line(drawing, style):
        drawing.line([(0, 0), (1, 1)], style)
        drawing.marker(0, 0, style)

    assert len(set(shapes(line))) == 12
    assert len(set(shapes(lambda drawing, style: drawing.hatch(style)))) == 12


# ---- anything at all in the files

ODD_VALUES = (
    None, True, -1, 0, 1e308, math.nan, math.inf, 10**30, "", "x" * 500, "<b>", "\ud800", [], {},
    {"a": 1}, [[]], 1e-300, -5.5, 1e15,
)  # fmt: skip


def spoiled(value, rng):
    if rng.random() < 0.15:
        return rng.choice(ODD_VALUES)
    if isinstance(value, dict):
        keys = [key if rng.random() > 0.03 else rng.choice(["<k>", "", "\x00"]) for key in value]
        return dict(zip(keys, (spoiled(v, rng) for v in value.values()), strict=True))
    return value


@pytest.mark.parametrize("seed", range(40))
def test_a_report_of_anything_is_well_formed(tmp_path, seed):
    rng = random.Random(seed)
    folder = write_made_run(tmp_path / "run", batches=30, warmup=3)
    for name in ("result.json", "batch_times.jsonl", "memory.jsonl"):
        path = folder / name
        if rng.random() < 0.5:
            lines = path.read_text().splitlines()
            records = [spoiled(json.loads(line), rng) for line in lines]
            write_lines(path, records)
        else:
            data = bytearray(path.read_bytes())
            for _ in range(rng.randrange(40)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            path.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.3 else data)
    page = write_run_report(folder).read_text("utf-8")
    assert "<script" not in page
    for path in svg_files(folder):
        parsed(path)
        assert "nan" not in path.read_text("utf-8").lower()


@pytest.mark.parametrize(("low", "high"), [(0.109, 0.186), (0.11, 0.111), (1e-4, 50.0), (3.0, 3.5)])
def test_a_log_axis_of_any_width_has_ticks(low, high):
    ticks = Axis.around(low, high, 0.0, 100.0, "log").ticks(str, 7)
    assert 2 <= len(ticks) <= 12
