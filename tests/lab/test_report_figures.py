"""Every figure shows what it is given, in one look, and leaves no setting behind."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from catnat_lab.report import Cell, curves
from catnat_lab.report import gsl_figures as figures
from catnat_lab.report.svg import STYLES
from catnat_lab.stats import Excess, excess
from tests.lab.report_cases import (
    LINES,
    SETTINGS,
    cell,
    curve_panels,
    drawn,
    excess_panels,
    search_panels,
    table,
    values,
)

# --- the figures


def test_learning_curves_have_a_panel_a_group_and_a_line_a_parameterization() -> None:
    figure = figures.draw_learning_curves(curve_panels())
    assert [axes.get_title("left") for axes in figure.axes] == [f"θ* = {g}" for g in (0.1, 0.25, 0.5, 0.75, 0.9)]
    for axes in figure.axes:
        colours = {line.get_label(): to_hex(line.get_color()) for line in axes.lines}
        assert colours.pop("optimal") and colours == {line: STYLES[line].colour.lower() for line in LINES}
        assert len(axes.collections) == 4  # the bands
        optimal = next(line for line in axes.lines if line.get_label() == "optimal")
        assert optimal.is_dashed() and set(np.atleast_1d(optimal.get_ydata())) == {7.0}


def test_a_curve_is_the_mean_with_one_deviation_around_it() -> None:
    curve = curves.Curve.of_runs([0, 1], [[1.0, 5.0], [3.0, float("nan")]])
    mean, low, high = (np.asarray(part, dtype=float) for part in (curve.mean, curve.low, curve.high))
    assert np.allclose([mean[0], low[0], high[0]], [2, 2 - 2**0.5, 2 + 2**0.5]) and np.isnan(mean[1])
    figures.learning_curves([curves.CurvePanel("0.1", {"softmax": curve})])
    cut = curves.Curve.of_runs([0, 1, 2], [[1.0, 2.0, 3.0], [3.0, 4.0]])
    assert list(np.asarray(cut.steps)) == [0, 1] and list(np.asarray(cut.mean)) == [2, 3]


def test_a_curve_that_diverged_altogether_is_left_out() -> None:
    nothing = curves.Curve.of_runs(range(5), np.full((3, 5), np.nan))
    assert "nan" not in figures.learning_curves([curves.CurvePanel("0.1", {"softmax": nothing}, None)]).lower()


def test_graphs_share_one_scale_and_errors_another() -> None:
    true = 0.1 * np.eye(24)
    learned = {line: true + 0.01 * place for place, line in enumerate(LINES)}
    figure = figures.draw_graphs(true, learned)
    images = [axes.images[0] for axes in figure.axes if axes.images and axes.get_label() != "<colorbar>"]
    graphs, errors = [images[0], *images[1:5]], images[5:]
    assert len(images) == 9
    for some, top in ((graphs, 0.13), (errors, 0.03)):
        assert len({image.get_clim() for image in some}) == 1 and np.allclose(some[0].get_clim(), (0, top))
    assert np.allclose(np.asarray(errors[2].get_array()), 0.02)
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles[:5] == ["true", *LINES]


def places(line: Line2D) -> list[float]:
    return [float(x) for x in np.asarray(line.get_xdata(), dtype=float)]


def test_searches_tell_coarse_refined_chosen_and_diverged() -> None:
    figure = figures.draw_searches(search_panels())
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert axes.get_xscale() == "log"
        lines = [line for line in axes.lines if line.get_label() in LINES]
        assert [places(line) for line in lines] == [[0.001, 0.005, 0.01]] * 4
        coarse, refined, chosen, lost = axes.lines[1:5]
        assert coarse.get_markerfacecolor() == "none" != refined.get_markerfacecolor()
        assert places(refined) == places(chosen) == [0.005]
        assert chosen.get_markersize() > refined.get_markersize()
        assert places(lost) == [0.1] and lost.get_marker() == "x"


@pytest.mark.parametrize("top", [0.0056, 0.009, 0.05, 5.0])
def test_every_axis_of_a_search_has_labels(top: float) -> None:
    search = figures.Search([(0.002, 0.0055), (0.003, top)])
    figure = figures.draw_searches([figures.SearchPanel("0.1", {"softmax": search})])
    figure.draw_without_rendering()
    (axes,) = figure.axes
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        assert sum(low <= place <= high for place in axis.get_majorticklocs()) >= 2


def test_trades_join_the_rates_of_a_parameterization_and_ring_the_chosen_one() -> None:
    points = {"softmax": [(0.02, 7.6), (0.01, 7.5), (0.03, 7.9)], "catnat": [(0.01, 7.5), (float("nan"), 7.4)]}
    figure = figures.draw_trades([figures.TradePanel("0.5", points, {"softmax": 1})])
    (axes,) = figure.axes
    joined, ring, other = axes.lines[:3]
    assert places(joined) == [0.02, 0.01, 0.03] and places(ring) == [0.01] and places(other) == [0.01]
    assert ring.get_markersize() > joined.get_markersize()
    assert "softmax" in figures.trades([figures.TradePanel("0.5", points, {})])


def test_excesses_have_a_dot_and_a_bar_for_ours_and_the_paper_s() -> None:
    panels = excess_panels()
    panels[1] = figures.ExcessPanel("0.5", {**panels[1].ours, "softmax": Excess(float("nan"), 0.0)})
    figure = figures.draw_excesses(panels)
    assert [len(axes.containers) for axes in figure.axes] == [8, 3, 8]
    first, second = figure.axes[0].containers[:2]
    assert first[0].get_markerfacecolor() != "none" == second[0].get_markerfacecolor()


def test_excesses_come_from_a_table_as_the_statistics_have_them() -> None:
    diverged = Cell((*values(7.4)[:9], float("nan")), 7.4, 0.01)
    mine = table({"a": cell(7.45, 7.5), "b": diverged, "c": Cell(values(7.6))}, optimal=cell(7.0))
    panel = figures.ExcessPanel.of_table(mine, "0.1", mine.columns[0])
    assert set(panel.ours) == {"a", "c"} and set(panel.paper) == {"a", "b"}
    expected = excess(values(7.45), values(7.0))
    assert np.allclose([panel.ours["a"].mean, panel.ours["a"].error], [expected.mean, expected.error])
    assert np.allclose([panel.paper["a"].mean, panel.paper["a"].error], [0.5, 0.01 * (2 / 10) ** 0.5])


def test_figures_are_text_well_formed_and_leave_no_setting_behind() -> None:
    for figure in drawn():
        root = ET.fromstring(figure.svg)
        words = "".join(root.itertext())
        assert "softmax" in words and "currentColor" in figure.svg and "metadata" not in figure.svg
    assert dict(rcParams) == SETTINGS
    assert figures.learning_curves(curve_panels()) == figures.learning_curves(curve_panels())


def test_nothing_is_drawn_outside_the_figure() -> None:
    search = search_panels()[0].searches["softmax"]
    searches = [figures.SearchPanel("0.1", dict.fromkeys(STYLES, search))]  # the longest legend there is
    for figure in (figures.draw_searches(searches), figures.draw_learning_curves(curve_panels())):
        figure.draw_without_rendering()
        extent, whole = figure.legends[0].get_window_extent(), figure.bbox
        assert extent.x0 >= whole.x0 and extent.x1 <= whole.x1
        assert all(axes.get_window_extent().y1 <= extent.y0 for axes in figure.axes)


def test_an_unknown_parameterization_is_drawn_too() -> None:
    assert "new one" in figures.excesses([figures.ExcessPanel("0.1", {"new one": Excess(0.1, 0.1)})])
