"""What a search chooses from."""

from __future__ import annotations

from torchport.engines.protocol import Trial
from torchport.optimization.search_space import Choice, Variant, combinations, combined, trials, variants
from torchport.optimization.tuning_search import frontier


def test_the_model_as_given_comes_first_and_then_what_is_optimized_for_each_engine() -> None:
    found = variants(["onnxruntime", "openvino", "mine"], lossy=False)
    assert found[0] == Variant("as given")
    assert [(v.name, v.engine) for v in found[1:]] == [("optimized", "onnxruntime"), ("optimized", "openvino")]


def test_less_precision_is_tried_with_a_tolerance_only() -> None:
    exact, lossy = (variants(["onnxruntime", "openvino"], lossy=lossy) for lossy in (False, True))
    assert not any(variant.lossy for variant in exact)
    assert [(v.name, v.engine) for v in lossy if v.lossy] == [
        ("dynamic int8", "onnxruntime"),
        ("int8", "onnxruntime"),
        ("int8", "openvino"),
    ]
    assert [v.cost for v in lossy] == sorted(v.cost for v in lossy)


def test_threads_are_those_that_the_process_may_use() -> None:
    numbers = {trial.threads for trial in trials("onnxruntime", 8, lossy=False)} - {None}
    assert numbers == {4, 1}
    assert not any(trial.threads for trial in trials("onnxruntime", 1, lossy=False))


def test_options_that_set_the_same_are_not_combined() -> None:
    one, basic = Trial(threads=1), Trial(settings={"graph_optimization": "basic"})
    assert combined(one, basic) == Trial(1, {"graph_optimization": "basic"})
    assert combined(one, Trial(threads=2)) is None
    assert combined(basic, Trial(settings={"graph_optimization": "extended"})) is None


def test_options_that_helped_are_combined_the_most_promising_first() -> None:
    gains = {
        "a": (Trial(threads=1), 0.9),
        "b": (Trial(settings={"spinning": False}), 0.8),
        "c": (Trial(settings={"graph_optimization": "basic"}), 0.5),
    }
    found = list(combinations(gains))
    assert [round(factor, 3) for _, factor in found] == [0.4, 0.45, 0.72]
    assert found[0][0].settings == {"spinning": False, "graph_optimization": "basic"}


def test_the_frontier_leaves_out_what_another_choice_beats() -> None:
    names = ["fast", "exact", "worse", "unknown"]
    fast, exact, worse, unknown = (Choice(Variant(name), "onnxruntime") for name in names)
    figures = {fast: (1.0, 0.1), exact: (2.0, 0.0), worse: (2.5, 0.1), unknown: (0.5, None)}
    assert frontier(figures) == [fast, exact, unknown]
    assert frontier({**figures, unknown: (2.0, None)}) == [fast, exact]


def test_a_label_names_engine_variant_and_options() -> None:
    choice = Choice(Variant("int8"), "openvino", Trial(1, {"spinning": False}))
    assert choice.label == "openvino, int8, threads=1, spinning=false"
