"""The report in a real browser: every plot is drawn, in light and in dark."""

import cv2
import numpy as np
import pytest

from headrace.measure.report import write_comparison, write_run_report
from tests.measure.made_runs import oxe29_names, write_made_run
from tests.measure.report_pages import BROWSER, FIGURES, Page, browse

pytestmark = pytest.mark.skipif(
    BROWSER is None,
    reason="no Chromium on PATH to open the page in; `apt-get install chromium` gives one",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A comparison with a baseline; one dataset has a hostile name."""
    root = tmp_path_factory.mktemp("browser")
    names = [*oxe29_names()[:28], "<script>document.title='taken'</script>"]
    own = write_made_run(root / "headrace", names)
    other = write_made_run(root / "other", names, backend="other", rate=700, seed=2, stages=False)
    write_run_report(own)
    return write_comparison([own, other], root / "comparison.html")


def picture(page, folder, *options):
    file = folder / "page.png"
    browse(page, folder, f"--screenshot={file}", *options)
    image = cv2.imread(str(file))
    assert image.shape == (4200, 1200, 3)
    return image.astype(int)


def test_the_browser_finds_every_figure_and_runs_nothing(page, tmp_path):
    shown = tmp_path / "dom.html"
    shown.write_text(browse(page, tmp_path, "--dump-dom"))
    dom = Page(shown)
    assert dom.figures == [*FIGURES, "mixture_over_time_1", "mixture_over_time_2"]
    assert "script" not in dom.tags
    assert "<title>2 runs compared</title>" in dom.source


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_the_plots_have_colour_in_light_and_in_dark(page, tmp_path, scheme):
    setting = ["dark", "light"].index(scheme)
    image = picture(page, tmp_path, f"--blink-settings=preferredColorScheme={setting}")
    paper = image[5, 5]
    assert paper.max() < 60 if scheme == "dark" else paper.min() > 240
    assert (image[:, -20:] == paper).all(), "something is cut off at the right edge"
    below = image[500:]  # the plots; above them is the table
    # Paper all around, but drawn on from top to bottom: no plot has collapsed.
    drawn = (np.abs(below - paper).max(axis=2) > 60).any(axis=1)
    bands = drawn[: len(drawn) // 200 * 200].reshape(-1, 200).any(axis=1)
    assert bands[:16].all(), np.flatnonzero(~bands)
    spread = below.max(axis=2) - below.min(axis=2)
    assert (spread > 60).mean() > 0.01, "no coloured lines or bands"


def test_a_picture_on_its_own_opens_too(page, tmp_path):
    image = picture(page.parent / "headrace" / "mixture_over_time.svg", tmp_path)
    assert len(np.unique(image @ (1, 256, 65_536))) > 50
