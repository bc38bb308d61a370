"""The report in a real browser: every plot is drawn, in light and in dark."""

import shutil
import subprocess
from html.parser import HTMLParser

import cv2
import numpy as np
import pytest

from headrace.measure.report import write_comparison, write_run_report
from tests.measure.made_runs import oxe29_names, write_made_run

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
pytestmark = pytest.mark.skipif(
    BROWSER is None,
    reason="no Chromium on PATH to open the page in; `apt-get install chromium` gives one",
)
WIDTH, HEIGHT = 1200, 4200


class Figures(HTMLParser):
    """For each figure of a page: how many shapes it has drawn, and its words."""

    def __init__(self, dom):
        super().__init__()
        self.shapes, self.words, self.tags, self.name, self.hidden = {}, {}, set(), None, 0
        self.feed(dom)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        given = dict(attrs)
        if tag == "figure":
            self.name = given["id"]
            self.shapes[self.name], self.words[self.name] = 0, []
        elif self.name and tag == "title":
            self.hidden += 1
        elif self.name and tag in ("path", "rect", "circle"):
            outline = given.get("d") or given.get("width") or given.get("r")
            assert outline, (self.name, tag, given)
            assert "NaN" not in outline
            self.shapes[self.name] += 1

    def handle_endtag(self, tag):
        if tag == "figure":
            self.name = None
        elif tag == "title" and self.hidden:
            self.hidden -= 1

    def handle_data(self, data):
        if self.name and not self.hidden:
            self.words[self.name].append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A comparison with a rival whose datasets have hostile names."""
    root = tmp_path_factory.mktemp("browser")
    names = [*oxe29_names()[:28], "<script>document.title='taken'</script>"]
    own = write_made_run(root / "headrace", names)
    rival = write_made_run(root / "rival", names, backend="rival", rate=700, seed=2, stages=False)
    write_run_report(own)
    return write_comparison([own, rival], root / "comparison.html")


def browse(page, folder, *options):
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--hide-scrollbars", "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}",
        f"--window-size={WIDTH},{HEIGHT}", *options, page.resolve().as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return done.stdout.decode("utf-8")


def picture(page, folder, *options):
    file = folder / "page.png"
    browse(page, folder, f"--screenshot={file}", *options)
    image = cv2.imread(str(file))
    assert image.shape == (HEIGHT, WIDTH, 3)
    return image


def colours(image):
    return len(np.unique(image.astype(np.int32) @ (1, 256, 65_536)))


def test_every_plot_of_the_page_is_there_with_its_shapes_and_labels(page, tmp_path):
    dom = browse(page, tmp_path, "--dump-dom")
    figures = Figures(dom)
    assert set(figures.shapes) == {
        "throughput",
        "batch_times",
        "memory",
        "shares",
        "stages",
        "mixture_over_time_1",
        "mixture_over_time_2",
    }
    assert all(count > 10 for count in figures.shapes.values()), figures.shapes
    for name in ("throughput", "batch_times", "memory", "shares"):
        assert {"headrace", "rival"} <= set(figures.words[name]), name
    assert "script" not in figures.tags
    assert "<title>2 runs compared</title>" in dom


def test_the_plots_have_colour_in_light_and_in_dark(page, tmp_path):
    paper = {}
    for scheme, setting in (("dark", 0), ("light", 1)):
        option = f"--blink-settings=preferredColorScheme={setting}"
        image = picture(page, tmp_path, option)
        paper[scheme] = int(image[5, 5].mean())
        below = image[500:]  # the plots; above them is the table
        assert colours(below) > 100
        # Paper all around, but drawn on from top to bottom: no plot has collapsed.
        drawn = (np.abs(below.astype(int) - image[5, 5]).max(axis=2) > 60).any(axis=1)
        bands = drawn[: len(drawn) // 200 * 200].reshape(-1, 200).any(axis=1)
        assert bands[:16].all(), np.flatnonzero(~bands)
        spread = below.astype(int).max(axis=2) - below.astype(int).min(axis=2)
        assert (spread > 60).mean() > 0.01, "no coloured lines or bands"
    assert paper["dark"] < 60 < 240 < paper["light"]


def test_nothing_of_the_page_is_cut_off_at_its_right_edge(page, tmp_path):
    image = picture(page, tmp_path)
    assert (image[:, -20:] == image[5, 5]).all()


def test_a_picture_on_its_own_opens_too(page, tmp_path):
    image = picture(page.parent / "headrace" / "mixture_over_time.svg", tmp_path)
    assert colours(image) > 50
