"""The look of figures: colours as variables, text as text, the same bytes every time."""

import re
import subprocess
import sys

import cv2
import pytest

from headrace.errors import UsageError
from headrace.measure import theme
from tests.measure.report_pages import parsed


def drawn(label="a"):
    figure = theme.figure(300, 200)
    axes = figure.add_axes((0.2, 0.2, 0.7, 0.7))
    (line,) = axes.plot([0, 1, 2], [3.0, 1.0, 2.0], **theme.line(1))
    theme.hint(line, "rises & falls")
    axes.fill([0, 1, 1], [1, 1, 2], **theme.area(3))
    axes.text(1, 2, theme.printable(label))
    return figure


def svg_file(label="a"):
    with theme.style():
        return theme.svg(drawn(label), "A title").file()


def test_colours_are_variables_with_a_plain_colour_before_them():
    text = svg_file()
    assert "prefers-color-scheme:dark" in text
    for name, colour in (("c1", theme.COLOURS[1]), ("c3", theme.COLOURS[3]), ("ink", theme.INK)):
        found = re.findall(rf"(?:fill|stroke):{colour};(?:fill|stroke):var\(--{name}\)", text)
        assert found, name
        assert text.count(f"--{name}:") == 3  # light, dark and print
    assert not re.findall(
        r"(?:fill|stroke):#(?!\w+;(?:fill|stroke):var)\w+", text.split("</style>")[1]
    )


@pytest.mark.parametrize("label", ["a < b & c", "$x^2$", "x\x00\x1b", "\ud800", "日本語", "a\nb"])
def test_text_stays_text_whatever_it_holds(label):
    root = parsed(svg_file(label))
    words = [node.text for node in root.iter() if node.tag.endswith("}text")]
    assert theme.printable(label) in words
    assert "font-family" not in svg_file(label).split("</style>")[1]


def test_a_hint_is_a_title_and_groups_have_no_ids_that_a_page_could_have_twice():
    root = parsed(svg_file())
    titles = [node.text for node in root.iter() if node.tag.endswith("}title")]
    assert titles == ["A title", "rises & falls"]
    assert not [node for node in root.iter() if node.tag.endswith("}g") and node.get("id")]


def test_figures_of_different_names_share_no_ids_and_one_name_gives_the_same_bytes():
    with theme.style():
        texts = [theme.svg(drawn(), "t", name).element() for name in ("a", "a", "b")]
    assert texts[0] == texts[1]
    ids = [set(re.findall(r' id="(\w+)"', text)) for text in texts]
    assert ids[0]
    assert not ids[0] & ids[2]


def test_pictures_are_saved_at_twice_their_size(tmp_path):
    with theme.style():
        theme.save(drawn(), tmp_path / "a.png")
        theme.save(drawn(), tmp_path / "a.svg", title="T")
    assert cv2.imread(str(tmp_path / "a.png")).shape == (400, 600, 3)
    parsed((tmp_path / "a.svg").read_text("utf-8"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg"]


def test_lines_and_areas_differ_without_colour():
    lines = [(str(look["linestyle"]), look["marker"]) for look in map(theme.line, range(12))]
    assert len(set(lines)) == 12
    assert len({theme.area(number)["hatch"] for number in range(12)}) == 12


def test_the_settings_of_the_user_come_back():
    import matplotlib

    with matplotlib.rc_context({"font.size": 33}):
        with theme.style():
            assert matplotlib.rcParams["font.size"] == 12
        assert matplotlib.rcParams["font.size"] == 33


def test_a_missing_extra_names_the_feature_and_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not theme.available()
    with pytest.raises(UsageError, match="The sheet needs matplotlib") as caught:
        theme.require("The sheet")
    assert caught.value.remedy == "pip install 'headrace[plots]'"


def test_nothing_imports_matplotlib_or_jinja2_before_it_draws():
    code = (
        "import sys, headrace.cli.main, headrace.cli.report, headrace.measure.report\n"
        "import headrace.measure.report.tables, headrace.tuning.study, headrace.measure.theme\n"
        "print([name for name in ('matplotlib', 'jinja2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
