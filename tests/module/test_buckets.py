"""Buckets: a few programs serve all sizes, with the results of each size's own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.module.small_models import relu
from tests.module.test_stored_plans import open_cache, uses_plan
from xrt.cache import CompileCache
from xrt.errors import BundleError, OptionError, SignatureWarning
from xrt.formats.bundle import write_bundle
from xrt.formats.onnx import save
from xrt.graph import Function
from xrt.module.sizes import round_up
from xrt.passes import infer_shapes
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import RecordingEngine

ENGINE = RecordingEngine()
"""The reference, for one size at a time."""


@pytest.fixture(autouse=True)
def _forget() -> None:
    ENGINE.journal.clear()


def list_compiled_sizes() -> list[int]:
    """The first extent of the inputs of each Function that `ENGINE` has compiled in this test."""
    return [max((value.type.shape for value in function.inputs), key=len)[0] for function in ENGINE.journal.compiled]


def softmax(shape: str = "s,3") -> Function:
    return graph({"x": f"float32[{shape}]"}, {"y": f"float32[{shape}]"}, node("Softmax", "x", "y", axis=0))


REFUSED = graph({"x": "float32[s]"}, {"y": "int64[1,?]"}, node("NonZero", "x", "y", name="places"))


def make(model: Any, sizes: Any = None, engine: Any = ENGINE, **options: Any) -> xrt.XRTModule:
    return xrt.XRTModule(model, engine, shapes=xrt.Buckets(sizes), **{"cache": CompileCache(), "progress": False, **options})


def make_auto(model: Any, engine: Any = ENGINE) -> xrt.XRTModule:
    return xrt.XRTModule(model, engine, cache=CompileCache())


def check(module: xrt.XRTModule, model: Function, *sizes: int) -> None:
    """Compare calls of those sizes, twice each, with the model without padding."""
    exact = xrt.XRTModule(model, engine="toy")
    for size in sizes:
        x = np.random.default_rng(size).integers(-9, 9, (size, 3)).astype("float32")
        for item in (module(x), module(x=x), module(x, options=xrt.RunOptions(profile=True))):
            wanted = exact(x)
            assert item.shape == wanted.shape
            np.testing.assert_allclose(item, wanted, rtol=1e-6, atol=1e-6)


def test_a_bucket_is_less_than_half_as_large_again() -> None:
    buckets = [round_up(size) for size in range(1, 10_000)]
    assert all(size <= bucket < 1.5 * size for size, bucket in enumerate(buckets, 1))
    assert all(item <= other for item, other in pairwise(buckets))
    assert [round_up(bucket) for bucket in buckets] == buckets
    assert round_up(0) == 0
    assert len({*buckets[:512]}) == 18


ROUNDED = "buckets: sizes of 's' are rounded up to powers of two, or half way between"


@pytest.mark.parametrize("model", [relu(("s", 3)), softmax()], ids=["relu", "softmax"])
@pytest.mark.parametrize(("build", "first"), [(make, 6), (make_auto, 5)], ids=["all sizes are padded", "the first is not"])
def test_results_are_those_of_each_size(model: Function, build: Callable[..., xrt.XRTModule], first: int) -> None:
    with build(model) as module:
        check(module, model, 5, 7, 5, 8, 1, 5)
        assert ROUNDED in str(module.explain())
    assert list_compiled_sizes() == [first, 8, 1]


def test_sizes_that_cannot_be_padded_are_compiled_each() -> None:
    with make_auto(REFUSED) as module:
        [module(np.ones(size, "float32")) for size in (3, 4)]
        with pytest.warns(SignatureWarning) as caught:
            module(np.ones(5, "float32"))
    assert str(caught[0].message) == (
        "3 calls of this module have waited for a compile, each for other sizes: engine 'recording' needs every extent fixed; "
        "no buckets for 's': node 'places' (NonZero): there is no rule for its operator. Pass an engine that has "
        "one program for all sizes, such as 'ort'; shapes='each' accepts it"
    )
    assert list_compiled_sizes() == [3, 4, 5]


def test_asked_sizes() -> None:
    with make(softmax(), {"s": [16, 4]}) as module:
        check(module, softmax(), 3, 4, 9, 20)
        assert "buckets: sizes of 's' are rounded up to 4, 16, and the padding is masked" in str(module.explain())
    assert list_compiled_sizes() == [4, 16, 20]


def test_a_size_beyond_the_tables_of_the_model_is_cut_down() -> None:
    nodes = (node("Shape", "x", "n", start=0, end=1), node("Slice", "table zero n zero", "rows"), node("Add", "x rows", "y"))
    constants = {"table": np.ones((10, 3), "float32"), "zero": np.array([0])}
    model = graph({"x": "float32[s,3]"}, {"y": "float32[s,3]"}, *nodes, constants=constants)
    with make(model) as module:
        check(module, model, 7, 9, 10)
    assert list_compiled_sizes() == [8, 10]


class Twice(xrt.Graph):
    def build(self, x: Any) -> Any:
        return x + x


@pytest.mark.parametrize(
    ("model", "buckets", "message"),
    [
        (Twice(), None, "is an xrt\\.Graph; pass graph\\.trace"),
        (REFUSED, None, "sizes of 's' cannot be padded .* node 'places' \\(NonZero\\): there is no rule"),
        (REFUSED, {"s": 4}, "node 'places'"),
        (relu(("s", 3)), {"t": 4}, "Buckets has 't', and no input has a symbolic dim"),
        (relu((2, 3)), None, "the inputs of the model have none"),
        (relu(("s", 3)), "always", "Buckets takes sizes by symbolic dim, such as"),
        (relu(("s", 3)), {"s": [0]}, "Buckets: 's' takes a positive integer, several, or None; got \\[0\\]"),
    ],
)
def test_bad_use_is_one_error(model: Function, buckets: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make(model, buckets)


@pytest.mark.parametrize("buckets", [None, {"s": [4, 8]}], ids=str)
def test_a_bundle_has_the_programs_of_buckets(buckets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xs = {size: np.random.default_rng(size).standard_normal((size, 3)).astype("float32") for size in (3, 4, 5, 6, 7, 1)}
    with xrt.XRTModule(softmax(), engine="toy") as module:
        wanted = {size: module(x) for size, x in xs.items()}
    with make(softmax(), buckets, "ort") as module:
        module.save(tmp_path / "a.xrt", xs[3])
        module.save(tmp_path / "b.xrt", xs[7])
        text = str(module.explain()).splitlines()[-1]
    with xrt.load(tmp_path / "b.xrt", cache=CompileCache()) as loaded:
        with monkeypatch.context() as patch:
            patch.setattr("xrt.engines.ort.Ort.compile", lambda *_: pytest.fail("it is compiled again"))
            for size in (3, 7, 4 if buckets else 3):
                np.testing.assert_allclose(loaded(xs[size]), wanted[size], rtol=1e-5)
        for size in (5, 6, 1):  # others are compiled
            np.testing.assert_allclose(loaded(xs[size]), wanted[size], rtol=1e-5)
        assert str(loaded.explain()).splitlines()[-1] == text
        assert loaded.inputs == softmax().inputs
        assert loaded.run_self_test() is not None
    with xrt.load(tmp_path / "a.xrt", cache=CompileCache()) as loaded:
        loaded.save(tmp_path / "c.xrt", xs[3])
    monkeypatch.setattr("xrt.engines.ort.Ort.compile", lambda *_: pytest.fail("it is compiled again"))
    with xrt.load(tmp_path / "c.xrt", cache=CompileCache()) as loaded:
        np.testing.assert_allclose(loaded(xs[3]), wanted[3], rtol=1e-6)


def test_a_bundle_has_the_first_sizes_and_those_of_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xs = [np.random.default_rng(size).standard_normal((size, 3)).astype("float32") for size in (5, 7)]
    with make_auto(softmax(), "tvm") as module:
        wanted = [module(x) for x in xs]
        module.save(tmp_path / "a.xrt")
    monkeypatch.setattr("xrt.engines.tvm.Tvm.compile", lambda *_: pytest.fail("it is compiled again"))
    with xrt.load(tmp_path / "a.xrt", cache=CompileCache()) as loaded:
        for x, expected in zip(xs, wanted, strict=True):
            np.testing.assert_array_equal(loaded(x), expected)
        assert loaded.run_self_test() is not None


@pytest.mark.parametrize("shapes", [None, 1, "some", {}, {"buckets": 1}, {"buckets": {"s": [0]}}, {"buckets": "auto"}, ["auto"]])
def test_a_bundle_with_damaged_buckets_is_one_error(shapes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(path: Path, record: Any, *parts: Any, **others: Any) -> None:
        write_bundle(path, record._replace(facts={**record.facts, "shapes": shapes}), *parts, **others)

    monkeypatch.setattr("xrt.module.bundle.write_bundle", damage)
    with make(softmax(), None, "ort") as module:
        module.save(tmp_path / "a.xrt", np.ones((5, 3), "float32"))
    with pytest.raises(BundleError, match=r"its options cannot be read|it holds no programs"):
        xrt.load(tmp_path / "a.xrt")


@pytest.mark.slow
def test_a_later_module_finds_the_plans_of_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.formats.output.MIN_STAMP_AGE_NS", -(10**12))
    weight = np.random.default_rng(0).standard_normal((600, 600)).astype("float32")
    nodes = node("MatMul", "x w", "h"), node("Softmax", "h", "y", axis=0)
    model = graph({"x": "float32[s,600]"}, {"y": "float32[s,600]"}, *nodes, constants={"w": weight})
    save(infer_shapes(model), tmp_path / "model.onnx")
    x, are_stored = np.ones((5, 600), "float32"), []
    for buckets in (None, None, {"s": [8]}):
        cache = open_cache(tmp_path / "cache")
        with xrt.XRTModule(tmp_path / "model.onnx", "ort", shapes=xrt.Buckets(buckets), cache=cache) as module:
            are_stored.append(uses_plan(module, x))
            np.testing.assert_allclose(module(x), np.full((5, 600), 0.2), rtol=1e-6)
            assert module.verify(x)
    assert are_stored == [False, True, False]


def test_calls_with_arrays_of_the_caller_are_not_padded() -> None:
    x = np.arange(15, dtype="float32").reshape(5, 3)
    wanted = xrt.XRTModule(softmax(), engine="toy")(x)
    with make(softmax()) as module:
        out = np.empty((5, 3), "float32")
        assert module(x, out=out) is out
        np.testing.assert_allclose(out, wanted, rtol=1e-6)
        np.testing.assert_allclose(module(x, fetch=["y"])["y"], wanted, rtol=1e-6)
        bound = module.bind(x)
        np.testing.assert_allclose(bound(), wanted, rtol=1e-6)
        assert [value.shape for value in bound.inputs] == [(5, 3)]
        assert module.inputs == softmax().inputs
        assert module.verify(x)
    assert 5 in list_compiled_sizes()


def test_results_are_arrays_of_their_own() -> None:
    model = graph({"x": "float32[s,3]"}, {"x": "float32[s,3]", "y": "float32[s,3]"}, node("Relu", "x", "y"))
    x = np.ones((5, 3), "float32")
    with make(model) as module:
        for _ in range(2):
            same, positive = module(x)
            same[...] = positive[...] = 7
    assert x.max() == 1


@pytest.mark.parametrize("buckets", [None, {"s": [4, 8]}])
def test_engines_that_keep_dims_are_padded_where_it_is_required(buckets: Any) -> None:
    with make(softmax(), buckets, "toy") as module:
        check(module, softmax(), 3, 4, 5)
        assert module.plan.function.inputs[0].type.shape in ((6, 3), (8, 3))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(("kernel", "pad"), [(2, "SAME_UPPER"), (3, "SAME_LOWER"), (1, "SAME_UPPER")])
def test_strided_windows_with_same_padding_over_an_axis_that_stays(op: str, kernel: int, pad: str) -> None:
    window: dict[str, Any] = {"kernel_shape": [kernel, 1], "strides": [max(kernel, 2), 1], "auto_pad": pad}
    nodes = node(op, "x", "pooled", **window), node("Flatten", "pooled", "y", axis=3)
    model = graph({"x": "float32[N,1,H,4]"}, {"y": "float32[?,4]"}, *nodes)
    exact = xrt.XRTModule(model, engine="toy")
    with make(model, {"N": None}) as module:
        for batch, height in ((3, 5), (5, 6), (5, 7), (7, 4)):
            x = np.arange(batch * height * 4, dtype="float32").reshape(batch, 1, height, 4)
            np.testing.assert_array_equal(module(x), exact(x))


def test_two_dims() -> None:
    nodes = node("Transpose", "x", "turned", perm=[1, 0]), node("MatMul", "turned x", "y")
    model = graph({"x": "float32[a,b]"}, {"y": "float32[b,b]"}, *nodes)
    exact = xrt.XRTModule(model, engine="toy")
    with make(model) as module:
        for shape in ((5, 7), (7, 5), (1, 9), (6, 8)):
            x = np.arange(shape[0] * shape[1], dtype="float32").reshape(shape)
            np.testing.assert_array_equal(module(x), exact(x))


def test_texts() -> None:
    upper = node("StringNormalizer", "x", "y", case_change_action="UPPER")
    model = graph({"x": "string[s]"}, {"y": "string[s]"}, upper)
    with make_auto(model) as module:
        assert module(np.array(["a"], object)).tolist() == ["A"]
        assert module(np.array(["a", "b", "c"], object)).tolist() == ["A", "B", "C"]
    with make(model.replace(nodes=(node("Identity", "x", "y"),)), None, "toy") as module:
        assert module(np.array(["a", "b", "c", "d", "e"], object)).tolist() == list("abcde")


def test_a_session_pads_what_is_no_state() -> None:
    nodes = node("ReduceSum", "x axes", "sum", keepdims=0), node("Add", "total sum", "next"), node("Add", "x next", "y")
    ends = {"x": "float32[s,3]", "total": "float32[3]"}, {"y": "float32[s,3]", "next": "float32[3]"}
    model = graph(*ends, *nodes, constants={"axes": np.array([0])}, aliases=(("total", "next"),))
    with make(model) as module:
        session, total = module.new_session(), np.zeros(3)
        for size in (5, 6, 2, 5):
            x = np.arange(size * 3, dtype="float32").reshape(size, 3)
            total += x.sum(0)
            np.testing.assert_array_equal(session(x), x + total.astype("float32"))
    assert len(ENGINE.journal.compiled) == 2
