"""Every figure shows what it is given, in one look, and leaves no setting behind."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
from matplotlib import rcParams
from matplotlib.colors import to_hex

from catnat_lab.report.figures import (
    STYLES,
    CurvePanel,
    Strip,
    draw_curves,
    draw_differences,
    draw_pictures,
    inlined,
    strips_of,
    styles,
)
from catnat_lab.report.table import Cell, judge
from catnat_lab.stats import Comparison
from tests.lab.report_cases import LINES, cell, curve, curve_panels, drawn, large, table


def test_curves_have_a_panel_a_group_and_a_line_a_parameterization() -> None:
    figure = draw_curves(curve_panels(), "score")
    assert [axes.get_title("left") for axes in figure.axes] == ["0.1", "0.25", "0.5", "0.75", "0.9"]
    for axes in figure.axes:
        colours = {line.get_label(): to_hex(line.get_color()) for line in axes.lines}
        assert colours.pop("optimal") and colours == {line: STYLES[line]["color"].lower() for line in LINES}
        assert len(axes.collections) == 4  # the bands
        optimal = next(line for line in axes.lines if line.get_label() == "optimal")
        assert optimal.is_dashed() and set(np.atleast_1d(optimal.get_ydata())) == {7.0}


def test_a_curve_is_the_mean_with_one_deviation_around_it() -> None:
    found = curve([1.0, 5.0], [3.0, float("nan")])
    assert np.allclose([found.mean[0], found.low[0], found.high[0]], [2, 2 - 2**0.5, 2 + 2**0.5])
    assert np.isnan(found.mean[1])
    cut = curve([1.0, 2.0, 3.0], [3.0, 4.0])
    assert list(cut.steps) == [0, 1] and list(cut.mean) == [2, 3]


def test_a_curve_that_diverged_altogether_is_left_out() -> None:
    nothing = curve(*np.full((3, 5), np.nan))
    figure = draw_curves([CurvePanel("0.1", {"softmax": nothing})], "score")
    assert "nan" not in inlined(figure, "", "").lower()


def test_pictures_share_one_scale() -> None:
    figure = draw_pictures({line: place * np.eye(24) for place, line in enumerate(LINES, 1)}, "YlGnBu")
    images = [axes.images[0] for axes in figure.axes if axes.images and axes.get_label() != "<colorbar>"]
    assert {image.get_clim() for image in images} == {(0.0, 4.0)}
    assert [axes.get_title("left") for axes in figure.axes][:4] == list(LINES)


def test_differences_are_those_of_the_verdict_and_better_is_to_the_right() -> None:
    (strip,) = strips_of(judge(table({"softmax": cell(7.45), "a": cell(7.40), "lost": Cell((1.0, float("nan")))})))
    found = strip.differences["a"]
    assert set(strip.differences) == {"a"} and found.low < found.difference < found.high < 0 and strip.lower_is_better
    assert len(strips_of(judge(large()))) == 20
    for lower in (True, False):
        (axes,) = draw_differences([Strip("s", strip.differences, lower)]).axes
        interval, dot = axes.lines[:2]
        assert (np.asarray(dot.get_xdata(), float)[0] > 0) == lower and dot.get_label() == "a"
        assert np.allclose(np.abs(np.asarray(interval.get_xdata(), float)), np.abs([found.low, found.high]))


def test_a_line_that_is_far_off_does_not_hide_the_others() -> None:
    ends = {"catnat": (1.0, 0.5, 1.5), "catnat-sigmoid": (-1.0, -2.0, 0.0), "catnat-paper": (-500.0, -600.0, -400.0)}
    near = {name: Comparison(*each, 0.0, 1.0) for name, each in ends.items()}
    none = {"catnat": Comparison(0.0, 0.0, 0.0, 0.0, 1.0)}
    one, other = draw_differences([Strip("x", near, False), Strip("y", none, False)]).axes
    assert one.get_xlim()[1] < 10 and "-5e+02" in [text.get_text() for text in one.texts]
    assert [text.get_text() for text in other.texts] == ["not run"] * 2
    assert all(abs(x) < 10 for line in one.lines for x in np.asarray(line.get_xdata(), dtype=float))


def test_figures_are_text_well_formed_and_leave_no_setting_behind() -> None:
    before = dict(rcParams)
    pictures = [inlined(figure.figure, "", "") for figure in drawn()]
    for svg in pictures:
        words = "".join(ET.fromstring(svg).itertext())
        assert "softmax" in words and "currentColor" in svg and "metadata" not in svg
    assert dict(rcParams) == before
    assert pictures[0] == pictures[3]  # the same curves, drawn twice


def test_nothing_is_drawn_outside_the_figure() -> None:
    for names in (LINES, (*STYLES, "a new one")):  # the longest legend there is
        figure = draw_curves([CurvePanel("0.1", dict.fromkeys(names, curve([1.0, 2.0])), 1.0)], "score")
        figure.draw_without_rendering()
        extent, whole = figure.legends[0].get_window_extent(), figure.bbox
        assert extent.x0 >= whole.x0 and extent.x1 <= whole.x1
        assert all(axes.get_window_extent().y1 <= extent.y0 for axes in figure.axes)


def test_heads_on_other_trees_have_their_activations_colour_and_another_stroke() -> None:
    names = ("softmax", "catnat", "catnat[[0,1],2]", "catnat[[0,2],1]", "catnat-sigmoid[[0,1],2]", "mine", "yours")
    looks = styles(names)
    assert [looks[name]["linestyle"] for name in names] == ["-", "-", "--", ":", "-", "-", "-"]
    assert len({looks[name]["color"] for name in names}) == len(names) - 2  # those of no style of ours, too
    assert looks["catnat[[0,1],2]"] == looks["catnat"] | {"linestyle": "--"}
