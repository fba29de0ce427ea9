"""What is drawn is what was given: data of lines and maps, colour limits, closed cells, marks."""

import io
from itertools import pairwise, permutations

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from abcnb.lines.algorithm1 import DIRECTIONS, Algorithm1Config, line_table
from abcnb.lines.line import windows
from abcnb.show import figures, hero, style
from abcnb.show.panels.drawing import _labels, _layout, head_maps, of_heads
from abcnb.show.style import CLOSED as GREY
from abcnb.show.style import COLOURMAP, KEPT
from abcnb.study import results
from abcnb.study.methods import METHODS, experiment
from abcnb.study.runs import load_run
from abcnb.tasks.task import get_task

CLOSED = -torch.inf


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def meshes(figure):
    """The heat maps of a figure, each as a masked array of rows and columns, without colour bars."""
    maps = [axis.collections[0] for axis in figure.axes if axis.get_title() and axis.collections]
    return [mesh.get_array() for mesh in maps], [mesh.get_clim() for mesh in maps]


def drawn(axis):
    """The data of an axis' lines by their label."""
    return {line.get_label(): line.get_xydata().tolist() for line in axis.lines}


def boundaries(axis):
    """Where dotted vertical lines stand."""
    lines = [line.get_xdata() for line in axis.lines if line.get_linestyle() == ":" and len(line.get_xdata()) == 2]
    return [float(x[0]) for x in lines if x[0] == x[1]]


# --- style


def test_thirty_lines_look_different():
    assert len({tuple(style.line_style(n).values()) for n in range(30)}) == 30
    assert style.line_styles(["b", "a", "b"]) == {"b": style.line_style(0), "a": style.line_style(1)}


def test_a_method_looks_the_same_in_every_figure():
    assert set(style.STYLED) <= set(METHODS)
    own = style.line_style(style.STYLED.index("abc"))
    several = style.line_styles(["other", "abc", "vanilla", "another"])
    plain_and_schemes = style.line_styles(["vanilla", "nope", "alibi", "rope", "rpe"])
    assert len({look["color"] for look in plain_and_schemes.values()}) == 5  # they share notebook 2's figures
    assert several["abc"] == own == style.line_styles(["abc"])["abc"]
    assert len({tuple(look.values()) for look in several.values()}) == 4
    first = next(iter(figures.accuracy_by_length(ONE.assign(method="abc"), 6, "title").axes[0].lines))
    assert first.get_color() == own["color"]


# --- maps


def test_attention_maps_draw_every_head_on_one_scale():
    attention = torch.rand(5, 3, 4, generator=torch.Generator().manual_seed(0))
    figure = figures.attention_maps(attention, "a title", source="$12&")
    maps, limits = meshes(figure)
    assert len(maps) == 5 and set(limits) == {(0, 1)}
    for head, values in enumerate(maps):
        np.testing.assert_array_equal(values, attention[head])
    last = figure.axes[4]  # only the lowest panels have labels
    assert [label.get_text() for label in last.get_xticklabels()] == list("$12&")
    assert last.get_ylim() == (3, 0) and figure.get_suptitle() == "a title"


def test_closed_cells_are_masked_and_open_ones_span_the_colours():
    bias = torch.tensor([[[0.0, CLOSED], [-1.5, CLOSED]], [[CLOSED, -0.5], [0.0, 0.0]]])
    maps, limits = meshes(figure := figures.bias_maps(bias, "bias", names=["a[place]", "+"]))
    assert [axis.get_title() for axis in figure.axes[:2]] == ["a[place]", "+"]
    assert set(limits) == {(-1.5, 0)}
    for head, values in enumerate(maps):
        np.testing.assert_array_equal(np.ma.getmaskarray(values), torch.isinf(bias[head]))
        assert values.compressed().tolist() == bias[head][bias[head].isfinite()].tolist()


@pytest.mark.parametrize("low, bars", [(0.0, 0), (-2.0, 1)])
def test_a_window_of_open_and_closed_cells_has_no_colour_bar(low, bars):
    figure = figures.bias_maps(torch.tensor([[[low, 0.0, CLOSED]]]), "bias")
    assert [axis.get_ylabel() for axis in figure.axes].count("bias") == bars


def test_offset_maps_share_a_scale_and_leave_out_what_has_no_weight():
    names = {"index": "rows apart", "columns": "places apart"}
    wide = pd.DataFrame([[0.1, 0.9, np.nan]], index=[-1], columns=[-1, 0, 1]).rename_axis(**names)
    tall = pd.DataFrame([[0.5], [0.25]], index=[0, 1], columns=[0]).rename_axis(**names)
    figure = figures.offset_maps({"wide": wide, "tall": tall}, "title")
    maps, limits = meshes(figure)
    assert limits == [(0, 1), (0, 1)]
    np.testing.assert_array_equal(maps[0].filled(np.nan), [[0.1, 0.9, np.nan]])
    assert maps[1].tolist() == [[0.5], [0.25]]
    labels = [(axis.get_title(), axis.get_xlabel(), axis.get_ylabel()) for axis in figure.axes[:2]]
    assert labels == [(name, "places apart", "rows apart") for name in ("wide", "tall")]


def test_the_layout_of_a_source_is_written_into_its_cells():
    figure = figures.source_layout("$12&", get_task("successor").stream(2))
    texts = sorted(figure.axes[0].texts, key=lambda text: text.get_position()[::-1])
    assert [text.get_text() for text in texts] == ["·", "#", "#", "·", "2", "1", "0", "-1"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["kind", "place"]


def cells_of(png, corner, wide, tall, shape):
    """The colour in the middle of each cell of a map, [rows, columns, 3], from 0 to 1."""
    picture = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")) / 255
    y, x = ((np.arange(n) + 0.5) / n for n in shape)
    return picture[(corner[1] + y * tall).astype(int)[:, None], (corner[0] + x * wide).astype(int)]


def test_panel_maps_are_grey_where_closed_and_share_the_colours_of_an_attention():
    stream = get_task("successor").stream(3)
    (bias,) = windows(stream, 2).cross_biases
    window = bias(torch.arange(4), stream.columns(crossing=True))
    self_ = torch.zeros(2, 4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), CLOSED) - torch.eye(4)
    png = head_maps(window, self_, of_heads((0, 1)), "title", "$123&", tall=115)
    (wide, _), corners = _layout(2, 2, 115)
    grey, low, high = map(to_rgb, (GREY, *matplotlib.colormaps[COLOURMAP]([0.0, 1.0])))
    for number, values in enumerate((window, self_)):
        for head, matrix in enumerate(values):
            found = cells_of(png, corners[number, head], wide, 115, matrix.shape)
            for value, colour in ((CLOSED, grey), (-1.0, low), (0.0, high)):
                assert np.allclose(found[matrix.numpy() == value], colour, atol=0.01)


@pytest.mark.parametrize(("crossed", "own"), [(1, 1), (2, 2), (4, 1), (5, 5), (13, 4), (1, 3)])
def test_panel_maps_lie_in_the_picture_and_apart(crossed, own):
    (wide, height), corners = _layout(crossed, own, 100)
    assert len(corners) == crossed + own
    for (left, top), (other, below) in permutations(corners.values(), 2):
        assert 0 < left < left + wide < 960 and 0 < top < top + 100 < height
        assert abs(left - other) > wide or abs(top - below) > 100


def test_panel_maps_outline_a_step():
    weights = torch.rand(8, 4, 6), torch.rand(8, 4, 4)
    shown = {"source": "$12+3&", "fed": "$123", "written": "321&", "weights": True}
    first = head_maps(*weights, of_heads(range(8)), "title", **shown, step=2)
    second = head_maps(*weights, of_heads(range(8)), "title", **shown, step=3)
    one, other = (np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int) for png in (first, second))
    assert one.shape == other.shape and one.shape[1] == 960
    outlined = (abs(one - np.array(to_rgb(KEPT)) * 255) < 2).all(-1)
    assert outlined.sum() > 16 * 2 * 100 and 0 < (one != other).any(-1).mean() < 0.1


def test_panel_maps_are_labelled_where_there_is_room():
    assert _labels("$12+3&", 6, room=True) == list(enumerate("$12+3&"))
    assert _labels("1" * 100, 100, room=False) == [(n, str(n)) for n in (0, 25, 50, 75)]


# --- lines


def test_kept_lines_are_marked_and_dropped_ones_are_not():
    """One diagonal of head 0 is strong, and a vertical of head 1."""
    attention = torch.full((2, 4, 6), 0.05)
    attention[0, range(4), range(4)] = 0.8
    attention[1, :, 2] = 0.7
    config = Algorithm1Config(directions_cross=(1, 0))
    table = line_table(attention, "cross", config)
    figure = figures.line_strengths(table, head=0)
    assert [axis.get_title() for axis in figure.axes] == [DIRECTIONS[1], DIRECTIONS[0]]
    mine = table[table["head"] == 0]
    for axis, direction in zip(figure.axes, (1, 0), strict=True):
        lines = mine[mine["direction"] == direction]
        for name, rows in (("kept", lines[lines["kept"]]), ("dropped", lines[~lines["kept"]])):
            assert drawn(axis)[name] == rows[["offset", "strength"]].to_numpy().tolist()
    assert figure.axes[0].get_ylabel() == "strength d"


def test_the_plateau_has_a_curve_per_seed_and_the_lines_of_the_first():
    columns = ["task", "seed", "tau", "lines", "exact_match"]
    rows = [("parity", 70, 0.1, 9, 100.0), ("parity", 70, 0.3, 4, 20.0), ("parity", 71, 0.1, 8, 99.0)]
    rows.append(("addition", 70, 0.1, 17, 100.0))
    parity, addition = figures.plateau(pd.DataFrame(rows, columns=columns), 0.1, "title").axes
    assert (parity.get_title(), addition.get_title()) == ("parity", "addition")
    curves = {line.get_label(): line.get_xydata().tolist() for line in parity.lines[:2]}
    assert curves == {"seed 70": [[0.1, 100.0], [0.3, 20.0]], "seed 71": [[0.1, 99.0]]}
    assert [text.get_text() for text in parity.texts] == ["9", "4"]
    assert "τ = 0.1" in [text.get_text() for text in parity.figure.legends[0].get_texts()]


def test_every_share_of_a_line_is_a_point():
    columns = ["task", "line", "share"]
    rows = [
        ("parity", "a[place]", 0.5),
        ("parity", "a[place]", 0.75),
        ("parity", "a[0]", 0.125),
        ("sums", "b", 0.25),
    ]
    parity, sums = figures.shares(pd.DataFrame(rows, columns=columns), 0.1, "title").axes
    points = [[c.get_offsets()[:, 0].tolist() for c in axis.collections] for axis in (parity, sums)]
    assert points == [[[0.5, 0.75], [0.125]], [[0.25]]]
    assert [label.get_text() for label in parity.get_yticklabels()] == ["a[place]", "a[0]"]
    assert parity.lines[-1].get_xdata() == [0.1, 0.1]


def test_reading_by_step_has_a_panel_per_length():
    columns = ["length", "step", "share", "correct"]
    table = pd.DataFrame([(9, 0, 80.0, 100.0), (4, 0, 90.0, 95.0), (4, 1, 70.0, 60.0)], columns=columns)
    four, nine = figures.reading_by_step(table, train_length=6, title="reading").axes
    assert (four.get_title(), nine.get_title()) == ("4 digits", "9 digits")
    assert drawn(four)["attention on its place"] == [[0, 90.0], [1, 70.0]]
    assert drawn(nine)["digit correct"] == [[0, 100.0]]
    assert boundaries(four) == boundaries(nine) == [5.5]


# --- accuracy


def scores(*rows):
    table = pd.DataFrame(rows, columns=["method", "seed", "length", "exact_match"])
    return table.assign(low=table["exact_match"] - 5, high=table["exact_match"] + 1)


SEVERAL = scores(("ABC", 0, 6, 100), ("ABC", 1, 6, 90), ("ABC", 0, 60, 80), ("ABC", 1, 60, 40))
ONE = scores(("plain", 0, 60, 10), ("plain", 0, 6, 99))


def band(axis, number=0):
    """The corners of a band: its lowest and highest value at each length."""
    points = axis.collections[number].get_paths()[0].vertices
    return {
        float(x): (points[points[:, 0] == x, 1].min(), points[points[:, 0] == x, 1].max()) for x in points[:, 0]
    }


def test_accuracy_by_length_draws_means_and_bands():
    (axis,) = figures.accuracy_by_length(pd.concat([SEVERAL, ONE]), 6, "title").axes
    assert drawn(axis)["ABC"] == [[6, 95.0], [60, 60.0]] and drawn(axis)["plain"] == [[6, 99.0], [60, 10.0]]
    assert band(axis, 0) == {6.0: (90, 100), 60.0: (40, 80)}, "from the worst to the best seed"
    assert band(axis, 1) == {6.0: (94, 100), 60.0: (5, 11)}, "the interval of the only seed"
    assert boundaries(axis) == [6.0] and axis.get_ylim() == (-3, 103)
    assert axis.get_xscale() == "log" and [label.get_text() for label in axis.get_xticklabels()] == ["6", "60"]
    assert "training length" in [text.get_text() for text in axis.texts]


def test_what_is_of_one_seed_says_so():
    alone = figures.accuracy_by_length(ONE, 6, "title")
    assert alone.axes[0].get_title() == "title, one seed"
    assert [text.get_text() for text in alone.legends[0].get_texts()] == ["plain"]
    mixed = figures.accuracy_by_length(pd.concat([SEVERAL, ONE]), 6, "title")
    assert mixed.axes[0].get_title() == "title"
    assert [text.get_text() for text in mixed.legends[0].get_texts()] == ["ABC", "plain (one seed)"]


def test_a_method_looks_the_same_in_figures_that_lack_others():
    (axis,) = figures.accuracy_by_length(ONE, 6, "title", ["ABC", "plain"]).axes
    line = axis.lines[0]
    assert line.get_label() == "plain" and len(drawn(axis)) == 2
    looks = {"color": line.get_color(), "marker": line.get_marker(), "linestyle": line.get_linestyle()}
    assert looks == style.line_style(1)


def test_learning_curves_draw_the_validations():
    histories = {"a": [{"step": 100, "exact_match": 3.0}, {"step": 200, "exact_match": 97.0}], "b": []}
    (axis,) = figures.learning_curves(histories, "title").axes
    assert drawn(axis) == {"a": [[100, 3.0], [200, 97.0]], "b": []}


def test_every_seed_is_a_point():
    columns = ["task", "method", "seed", "exact_match"]
    rows = [("addition", "ABC", 0, 99.0), ("addition", "ABC", 1, 50.0), ("parity", "plain", 0, 0.0)]
    addition, parity = figures.seeds(pd.DataFrame(rows, columns=columns), "title").axes
    points = [[c.get_offsets()[:, 0].tolist() for c in axis.collections] for axis in (addition, parity)]
    assert points == [[[99.0, 50.0], []], [[], [0.0]]]
    assert [label.get_text() for label in addition.get_yticklabels()] == ["ABC", "plain"]


def test_number_lengths_are_bars():
    table = pd.DataFrame(
        {"numbers": ["even", "even", "uniform"], "digits": [1, 2, 2], "percent": [40.0, 60.0, 100.0]}
    )
    (axis,) = figures.number_lengths(table, "title").axes
    assert sorted(bar.get_height() for bar in axis.patches if bar.get_height()) == [40.0, 60.0, 100.0]


# --- the figure of the README


@pytest.fixture(scope="module")
def committed(repository):
    name = experiment("addition", "abc", "laptop", 0).digest
    table = results.read(repository / "reports" / "results" / "accuracy.csv")
    return load_run(repository / "reports" / "models" / name), table


def test_the_hero_shows_attention_its_lines_and_the_outcome(committed):
    run, table = committed
    attention, lines, outcome = hero.hero(run, table).axes
    (average,) = run.attention()
    np.testing.assert_array_equal(attention.images[0].get_array(), average.cross_attention.mean((0, 1)))
    tokens = [label.get_text() for label in attention.get_xticklabels()]
    assert "".join(tokens) == "$6543210+6543210&" and len(tokens) == average.stream.source

    stream = run.experiment.get_task().stream(hero.WIDE + 1)
    (bias,) = run.biases().cross_biases
    reached = torch.zeros(stream.rows, stream.source + 1, dtype=torch.bool)
    for opened in bias.on_lines(torch.arange(stream.rows), stream)[..., 0]:
        reached[torch.arange(stream.rows), opened] = True  # −1 is the column more
    np.testing.assert_array_equal(np.ma.getmaskarray(lines.images[0].get_array()), ~reached[:, :-1])
    strongest = run.calibration().table.query("attention == 'cross'").iloc[: hero.NAMED]
    named = [f"{row.line} {row.share:.2f}" for row in strongest.itertuples()]
    assert [text.get_text() for text in lines.get_legend().get_texts()] == [*named, "others"]

    curves = drawn(outcome)
    frozen = table.query("preset == 'laptop' and settings == '' and test_set == 'random' and seed >= 70")
    for task, name in hero.TASKS.items():
        far = 10 if task == "nested" else 60
        mine = frozen.query("task == @task and method == 'abc' and length == @far")
        assert curves[name][-1] == pytest.approx([far, (100 * mine["correct"] / mine["samples"]).mean()])
    plain = frozen.query(
        "task in ['successor', 'addition', 'parity', 'n-by-1'] and method == 'vanilla' and length == 6"
    )
    assert curves[hero.PLAIN][0] == pytest.approx([6, (100 * plain["correct"] / plain["samples"]).mean()])
    assert boundaries(outcome) == [6.0]


def test_the_hero_is_written_wide_and_small(repository, tmp_path):
    hero.write_hero(repository / "reports", tmp_path / "hero")
    for file in (tmp_path / "hero", repository / "reports" / "hero.png"):
        with Image.open(file) as image:
            assert image.size == (2000, 640)
        assert file.stat().st_size < 300_000


def test_marked_cells_of_an_attention_map_are_outlined():
    figure = figures.attention_maps(torch.rand(2, 3, 4), "title", marked=[(0, 3), (2, 1)])
    for axis in figure.axes[:2]:
        assert [patch.get_xy() for patch in axis.patches] == [(3, 0), (1, 2)]


def test_coinciding_lines_all_show():
    """Each is narrower than those below it, and so are its markers."""
    styles = list(style.nested_styles(map(str, range(8))).values())
    for below, above in pairwise(styles):
        assert below["linewidth"] > above["linewidth"] and below["markersize"] > above["markersize"]
    assert styles[3] | style.line_style(3) == styles[3]


def test_margins_are_counted_and_the_least_is_marked():
    (axis,) = figures.margins({"a model": torch.tensor([1.5, 4.0, 4.1, 9.0])}, "title").axes
    assert sum(bar.get_height() for bar in axis.patches) == 4
    assert [text.get_text() for text in axis.texts] == ["1.50"]
    assert axis.get_yscale() == "log" and axis.get_xlim()[0] == 0
