import threading
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest

from dpzv_audit.results import AttackResult, TrainResult, read
from reports import curves, figures, svg
from reports.svg import ACCENT, BAND, label_of

from .conftest import texts_of


def success_figure(result):
    attack = read(result)[0]
    assert isinstance(attack, AttackResult)
    return figures.success_figure(
        attack.attack, attack.success, attack.baselines, attack.controls, metric=attack.metric
    )


def epsilon_figure(result):
    privacy = read(result)[0].privacy
    return figures.epsilon_figure(privacy.claimed, privacy.empirical_lower, privacy.upper)


def tradeoff_figure(result):
    return curves.tradeoff_figure(read(result)[0].tradeoff)


def accuracy_figure(result):
    trained = read(result)[0]
    return curves.accuracy_figure(trained.utility, trained.method)


def bytes_figure(result):
    trained = read(result)[0]
    return curves.accuracy_figure(trained.utility, trained.method, by_bytes=True)


def staleness_figure(result):
    trained = read(result)[0]
    assert isinstance(trained, TrainResult)
    return "" if trained.staleness is None else figures.staleness_figure(trained.staleness.distribution)


FIGURES = {
    "attack": (success_figure, epsilon_figure, tradeoff_figure),
    "train": (accuracy_figure, bytes_figure, staleness_figure),
    "audit": (epsilon_figure, tradeoff_figure),
}


def words_of(svg):
    return " ".join(texts_of(svg))


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_well_formed_transparent_and_the_same_every_time(name, results):
    for figure in FIGURES[name]:
        svg = figure(results[name])
        assert svg == figure(results[name])
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        assert len(root.get("aria-label", "")) > 30
        assert "prefers-color-scheme:dark" in svg
        assert "<metadata" not in svg
        assert "fill: #ffffff" not in svg
        assert "<script" not in svg


def test_success_figure_prints_every_value(results):
    result = results["attack"]
    shown = words_of(success_figure(result))
    for number in ("0.121", "[0.104, 0.139]", "0.104", "0.100", "0.099", "[0.083, 0.116]", "1.000"):
        assert number in shown


def test_success_figure_moves_with_the_value(results):
    before = success_figure(results["attack"])
    results["attack"]["success"] |= {"value": 0.5, "low": 0.45, "high": 0.55}
    after = success_figure(results["attack"])
    assert before != after
    assert "0.500" in label_of(after)


def test_a_cosine_below_zero_is_drawn(results):
    result = results["attack"]
    result["controls"]["shuffled_labels"] |= {"value": -0.021, "low": -0.05, "high": 0.01}
    assert "-0.021  [-0.050, 0.010]" in words_of(success_figure(result))


def test_tradeoff_figure_draws_what_there_is(results):
    result = results["attack"]
    svg = tradeoff_figure(result)
    assert BAND in svg.split("</style>", 1)[1]
    assert ACCENT in svg.split("</style>", 1)[1]
    for word in (
        "claimed",
        "recomputed",
        "measured",
        "95% band",
        "false positive rate",
        "false negative rate",
    ):
        assert word in words_of(svg)
    result["tradeoff"] |= {"recomputed": None, "empirical_low": None}
    fewer = tradeoff_figure(result)
    assert "recomputed" not in words_of(fewer)
    assert BAND not in fewer.split("</style>", 1)[1]


def test_epsilon_figure_shows_an_upper_bound_off_the_scale(results):
    result = results["attack"]
    result["privacy"]["upper"] = 4321.9
    assert "ε ≤ 4,330" in words_of(epsilon_figure(result))


def test_accuracy_figure_names_its_controls(results):
    shown = words_of(accuracy_figure(results["train"]))
    assert "frozen-clients 0.861" in shown
    assert "majority 0.104" in shown


def test_bytes_figure_adds_both_directions(results):
    result = results["train"]
    svg = bytes_figure(result)
    last = result["utility"]["history"][-1]
    sent = (last["bytes_up"] + last["bytes_down"]) / 1e6
    assert f"by {sent:g} MB sent" in label_of(svg)
    assert "MB sent so far, up and down" in words_of(svg)
    for row in result["utility"]["history"]:
        del row["bytes_down"]
    assert bytes_figure(result) == ""


def test_staleness_figure_prints_every_share(results):
    shown = words_of(staleness_figure(results["train"]))
    for words in ("1", "2 to 3", "4 to 5", "62.5%", "37.5%", "less than 0.1%"):
        assert words in shown


@pytest.mark.parametrize(("name", "figure"), [(name, figure) for name in FIGURES for figure in FIGURES[name]])
def test_a_result_without_the_numbers_has_no_figure(name, figure):
    assert figure({"schema": f"dpzv-audit/{name}/1"}) == ""


def test_hostile_names_stay_text(results):
    result = results["attack"]
    name = '</text><script>$\\frac$\x1b漢 "'
    result["attack"] = name
    svg = success_figure(result)
    assert "<script" not in svg
    assert "$\\frac" in words_of(svg)
    assert "\\u001b" in words_of(svg)


def place_of(svg, word):
    root = ElementTree.fromstring(svg)
    found = next(e for e in root.iter("{http://www.w3.org/2000/svg}text") if e.text == word)
    return float(found.get("x", "nan")), float(found.get("y", "nan"))


def test_the_legend_of_a_tradeoff_leaves_a_band_in_its_corner_free(results):
    result = results["attack"]
    inside = tradeoff_figure(result)
    assert place_of(inside, "no information")[0] > place_of(inside, "false positive rate")[0]
    result["tradeoff"]["empirical_high"] = [0.9] * len(result["tradeoff"]["alpha"])
    above = tradeoff_figure(result)
    assert place_of(above, "no information")[0] < place_of(above, "false positive rate")[0]
    assert place_of(above, "measured")[1] < place_of(above, "0.75")[1]


def test_a_long_metric_is_written_whole_and_an_axis_below_zero_has_ticks(results):
    result = results["attack"]
    result["metric"] = "correlation of reconstructed with true features, about the mean record"
    result["controls"]["shuffled_labels"] |= {"value": -0.1, "low": -0.6, "high": 0.4}
    words = words_of(success_figure(result))
    assert "about the mean record" in words
    assert "…" not in words
    assert words.startswith("-0.5 -0.25 0 ")


def test_figures_of_two_threads_leave_matplotlibs_settings_as_they_were():
    """The first waits in its settings until the second has asked for its own, which it must not get before."""
    before = dict(matplotlib.rcParams)
    order, inside, leave = [], threading.Event(), threading.Event()

    def first(axes):
        inside.set()
        leave.wait(10.0)
        order.append("first")

    drawn = [
        threading.Thread(target=svg.draw, args=("a", "", 1.0, first)),
        threading.Thread(target=svg.draw, args=("b", "", 1.0, lambda axes: order.append("second"))),
    ]
    drawn[0].start()
    assert inside.wait(60.0)
    drawn[1].start()
    drawn[1].join(0.5)
    leave.set()
    for thread in drawn:
        thread.join()
    assert order == ["first", "second"]
    assert dict(matplotlib.rcParams) == before
