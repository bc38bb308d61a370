"""Verdicts, figures in words, ticks, and lines that differ without colour."""

import pytest

from headrace.measure.quantities import amount, megabytes, seconds, share
from headrace.measure.report.axis import Axis, round_ticks
from headrace.measure.report.svg import Drawing, shortened


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


@pytest.mark.parametrize(("low", "high"), [(0.109, 0.186), (0.11, 0.111), (1e-4, 50.0), (3.0, 3.5)])
def test_a_log_axis_of_any_width_has_ticks(low, high):
    ticks = Axis.around(low, high, 0.0, 100.0, "log").ticks(str, 7)
    assert 2 <= len(ticks) <= 12
