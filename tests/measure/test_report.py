"""Reports of runs: every file is written, and nothing from the data is taken for markup."""

from xml.etree import ElementTree

import pytest

from headrace.errors import UsageError
from headrace.measure.report import write_comparison, write_run_report
from headrace.measure.report.breakdown import stages
from headrace.measure.report.svg import escape
from headrace.measure.runs import read_run
from tests.measure.made_runs import oxe29_names, write_made_run
from tests.measure.report_pages import FIGURES, HOSTILE, MIXTURES, Page, parsed, svg_files, texts


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


def test_a_page_says_which_run_it_is_how_long_and_how_it_was_shuffled(tmp_path):
    words = Page(write_run_report(write_made_run(tmp_path / "seven")).read_text("utf-8")).words
    assert "seven · 380 batches measured after 20 of warm-up · AMD EPYC 9654, 2 cores" in words
    assert "shuffle: global" in words


def test_facts_of_the_machine_are_words_not_json(tmp_path):
    machine = {"memory_bytes": 25_276_518_400, "cgroup": {}, "versions": {"a": "1", "b": "2"}}
    folder = write_made_run(tmp_path / "run", machine=machine)
    words = "".join(Page(write_run_report(folder).read_text("utf-8")).words)
    for line in ("memory_bytes  25.3 GB", "cgroup        -", "versions      a 1, b 2"):
        assert line in words


def test_stages_that_are_either_busy_or_waiting_have_one_bar(tmp_path):
    busy = {"read": {"busy_s": 1.0, "waiting_s": 0.0}, "decode": {"busy_s": 9.0, "waiting_s": 0.0}}
    idle = {"waiting for work": {"busy_s": 0.0, "waiting_s": 2.0}}
    folder = write_made_run(tmp_path / "run", stages={**busy, **idle})
    plot = stages([read_run(folder)])
    assert ">9 s<" in plot.file()
    assert " / " not in plot.file()
    assert "the longest stage is what limits" in plot.caption
    both = stages([read_run(write_made_run(tmp_path / "both"))])
    assert "37.9 s / 800 ms" in both.file()
