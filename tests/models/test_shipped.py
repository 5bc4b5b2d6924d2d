"""The models written by code: deterministic, within the rules, alike on two engines, at sizes of one's choice."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from xrt.comparison import compare_all, tolerance_for
from xrt.engines import CompileContext, create
from xrt.errors import ModelError, OptionError
from xrt.graph import Function, TensorType
from xrt.graph.verify import verify
from xrt.models import light_models, list_model_sizes, load, names, sample_inputs

TINY: dict[str, dict[str, int]] = {
    "bert": {"layers": 2, "hidden": 16, "heads": 2, "tokens": 6, "vocabulary": 11, "batch": 2},
    "chain": {"length": 7, "batch": 3, "columns": 5},
    "conv_chain": {"length": 5, "channels": 4, "image": 6, "batch": 2},
    "conv_tail": {"length": 5, "channels": 4, "image": 6, "batch": 2},
    "detector": {"height": 40, "breadth": 50, "image": 32, "width": 25, "classes": 7, "detections": 9},
    "dlrm": {"tables": 3, "entries": 11, "width": 4, "lookups": 2, "dense": 5, "bottom": 16, "top": 12, "batch": 6},
    "gather_softmax": {"length": 6, "entries": 9, "width": 8, "columns": 4, "batch": 3},
    "gpt": {"layers": 2, "hidden": 16, "heads": 4, "tokens": 5, "vocabulary": 11, "batch": 2},
    "mlp": {"layers": 3, "features": 8, "hidden": 12, "classes": 5, "batch": 2},
    "mobilenet": {"image": 32, "width": 25, "classes": 7, "batch": 2},
    "reductions": {"batch": 3, "rows": 4, "columns": 5},
    "softmax_chain": {"length": 6, "batch": 3, "columns": 8},
    "speech": {
        "samples": 640,
        "window": 32,
        "hop": 16,
        "mels": 8,
        "channels": 4,
        "layers": 2,
        "hidden": 6,
        "letters": 5,
        "batch": 2,
    },
    "unet": {"image": 16, "channels": 4, "depth": 2, "classes": 3, "batch": 2},
    "vit": {"layers": 2, "hidden": 16, "heads": 2, "image": 16, "patch": 8, "classes": 5, "batch": 2},
}


def run(engine: str, function: Function, given: dict[str, Any]) -> list[Any]:
    executable = create(engine).compile(function, CompileContext())
    executable.prepare()
    try:
        return list(executable.run([given[value.name] for value in function.inputs]))
    finally:
        executable.close()


def test_every_model_by_code_is_tried() -> None:
    assert set(names()) == {*TINY, *light_models()}


@pytest.mark.parametrize("name", TINY)
def test_two_engines_agree_on_it(name: str) -> None:
    function = load(name, **TINY[name])
    verify(function)
    given = sample_inputs(function, seed=1)
    expected = run("toy", function, given)
    assert compare_all(run("ort", function, given), expected, tolerance_for("float32", "network")).message == ""
    assert all(0.01 < float(np.sqrt(np.mean(np.square(y)))) < 10 for y in expected)


@pytest.mark.parametrize("name", TINY)
def test_the_output_depends_on_the_input_and_the_declared_types_hold(name: str) -> None:
    function = load(name, **TINY[name])
    one, other = (run("toy", function, sample_inputs(function, seed)) for seed in (1, 2))
    assert all(np.abs(a - b).max() > 1e-7 for a, b in zip(one, other, strict=True))
    assert [v.type.shape for v in function.outputs if isinstance(v.type, TensorType)] == [y.shape for y in one]


@pytest.mark.parametrize("name", TINY)
def test_the_seed_decides_the_weights(name: str) -> None:
    first, again, other = (load(name, seed, **TINY[name]).fingerprint for seed in (3, 3, 4))
    assert first == again
    assert (first == other) == (name in WITHOUT_WEIGHTS)


WITHOUT_WEIGHTS = ("chain", "softmax_chain", "reductions")


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_every_size_counts(name: str) -> None:
    whole = load(name, **TINY[name]).fingerprint
    for size, value in TINY[name].items():
        assert load(name, **{**TINY[name], size: value * 2}).fingerprint != whole, size
    assert set(TINY[name]) == set(list_model_sizes(name))


def test_the_decoder_does_not_look_ahead() -> None:
    function = load("gpt", **TINY["gpt"])
    ids = np.zeros((2, 5), np.int64)
    changed = ids.copy()
    changed[:, 3] = 1
    (one,), (other,) = (run("toy", function, {"ids": given}) for given in (ids, changed))
    assert np.array_equal(one[:, :3], other[:, :3])
    assert np.abs(one[:, 3:] - other[:, 3:]).max() > 1e-3


def test_the_encoder_does_not_see_what_is_masked() -> None:
    function = load("bert", **TINY["bert"])
    ids, mask = np.zeros((2, 6), np.int64), np.ones((2, 6), np.int64)
    mask[:, 4] = 0
    changed = ids.copy()
    changed[:, 4] = 5
    one, other = (run("toy", function, {"ids": given, "mask": mask})[0] for given in (ids, changed))
    seen = [0, 1, 2, 3, 5]
    assert np.allclose(one[:, seen], other[:, seen], atol=1e-6)
    assert np.abs(one[:, 4] - other[:, 4]).max() > 1e-3


def test_every_band_of_pitch_hears_some_frequency() -> None:
    """One that does not is constant, and normalised to the rounding errors of its mean."""
    sizes = list_model_sizes("speech")
    shape = (sizes["window"] // 2 + 1, sizes["mels"])
    (filters,) = (c.array for c in load("speech", layers=1, hidden=1).constants.values() if c.shape == shape)
    assert filters.sum(axis=0).min() > 0.1


@pytest.mark.slow
def test_boxes_of_one_class_hardly_overlap_and_the_best_come_first() -> None:
    function = load("detector", **TINY["detector"])
    boxes, scores, labels = run("toy", function, sample_inputs(function))
    assert (np.diff(scores) <= 0).all() and set(labels) <= set(range(1, 7))
    for label in set(labels):
        these = boxes[labels == label]
        for a, b in itertools.combinations(these, 2):
            shared = np.prod(np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0))
            assert shared <= 0.451 * (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - shared)


@pytest.mark.parametrize(
    ("name", "sizes", "error", "text"),
    [
        ("brt", {}, ModelError, "there is no model 'brt'. Did you mean 'bert'? There are: bert, bvlc_alexnet, chain"),
        (
            "mlp",
            {"layer": 2},
            OptionError,
            "model 'mlp' has no size 'layer'; its sizes are layers, features, hidden, classes, batch.",
        ),
        ("squeezenet", {"batch": 2}, OptionError, "model 'squeezenet' has no size 'batch'; it comes in one size."),
        ("mlp", {"layers": 0}, OptionError, "layers of model 'mlp' must be a positive integer; got 0"),
        ("bert", {"hidden": 10, "heads": 4}, OptionError, "hidden=10 does not divide among heads=4; choose a multiple"),
        ("unet", {"image": 20, "depth": 3}, OptionError, "an image of 20 does not halve depth=3 times; choose a multiple of 8"),
        ("vit", {"image": 30}, OptionError, "an image of 30 does not divide into patches of 16; choose a multiple"),
    ],
)
def test_a_wrong_name_or_size_is_reported(name: str, sizes: dict[str, int], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        load(name, **sizes)
    assert str(caught.value).startswith(text)
