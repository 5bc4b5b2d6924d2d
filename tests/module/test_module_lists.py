"""XRTModule as its user meets it: lists of engines, the default engine, options and errors, and looking inside."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.module.small_models import Affine, Picky, X, chain, relu
from xrt.cache import CompileCache
from xrt.engines import RunOptions, names
from xrt.engines.contract import registry
from xrt.errors import CompileRefused, DeviceError, FallbackWarning, InputError, ModelError, OptionError, PlanError, UnknownEngine
from xrt.formats import onnx
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.module.engines import parse_devices
from xrt.module.programs import DEFAULT_ENGINES

# ---------------------------------------------------------------------- lists of engines


def test_what_nobody_named_takes_goes_to_the_reference_with_one_warning() -> None:
    m = xrt.XRTModule(chain("Relu", "Neg"), engine=Picky())
    with pytest.warns(FallbackWarning) as caught:
        m(X)
        m(X, fetch=["h0"])
    assert [Path(w.filename).name for w in caught] == ["test_module_lists.py"], "a warning points at the caller's line"
    (message,) = [str(w.message) for w in caught]
    assert message == (
        "1 node runs on the reference engine 'toy', as no engine of the list supports it: 'node1': "
        "Neg is not among Relu. m.explain() lists it; name 'toy' "
        "in the list to accept it, or pass strict=True to refuse it"
    )
    assert "node1" in str(m.explain())
    assert "Neg is not among Relu" in str(m.explain())


def test_the_warning_counts_what_was_refused_too() -> None:
    m = xrt.XRTModule(chain("Relu", "Neg", "Exp"), engine=Picky(takes="Relu|Exp", refuses="Exp"))
    with pytest.warns(FallbackWarning) as caught:
        m(X)
    refused, counted = (str(warning.message) for warning in caught)
    assert refused == "picky cannot compile node2; node 'node2' placed on another engine"
    assert counted == (
        "2 nodes run on the reference engine 'toy', as no engine of the list supports them, such as "
        "'node1': Neg is not among Relu|Exp. m.explain() lists them; "
        "name 'toy' in the list to accept it, or pass strict=True to refuse it"
    )


def test_naming_the_reference_accepts_it_in_silence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xrt.XRTModule(chain("Relu", "Neg"), engine=[Picky(), "toy"])(X)


def test_strict_refuses_with_each_reason() -> None:
    with pytest.raises(PlanError, match="Neg is not among Relu"):
        xrt.XRTModule(chain("Relu", "Neg"), engine=Picky(), strict=True)(X)


def test_what_is_refused_at_compile_is_placed_elsewhere() -> None:
    m = xrt.XRTModule(chain("Relu", "Neg", "Relu"), engine=[Picky(takes="Relu|Neg", refuses="Neg"), "toy"])
    with pytest.warns(FallbackWarning, match="picky cannot compile node1; node 'node1' placed on another engine"):
        y = m(X)
    np.testing.assert_array_equal(y, np.maximum(-np.maximum(X, 0), 0))
    assert [launch.engine.partition("{")[0] for launch in m.plan.launches] == ["picky", "toy", "picky"]


def test_a_refusal_that_nobody_can_take_over_is_the_cause_of_the_error() -> None:
    with pytest.raises(PlanError) as caught:
        xrt.XRTModule(chain("Relu"), engine=Picky(refuses="Relu"), strict=True)(X)
    assert isinstance(caught.value.__cause__, CompileRefused)


# ---------------------------------------------------------------------- options and errors


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"engine": "ort2"}, UnknownEngine, "Did you mean 'ort'?"),
        ({"engine": []}, OptionError, "the list of engines is empty; name at least one, such as engine='toy'"),
        ({"engine": ["toy", "toy"]}, OptionError, "engine 'toy' stands twice in the list ['toy', 'toy']; list each once"),
        ({"engine": 5}, OptionError, "an engine is a name, a spec or a GraphCompiler instance; got int 5"),
        ({"minimum_node": 2}, OptionError, "XRTModule has no option 'minimum_node'. Did you mean 'minimum_nodes'?"),
        ({"engin": "ort"}, OptionError, "XRTModule has no option 'engin'. Did you mean 'engine'?"),
        ({"device": "gpu"}, DeviceError, "unknown device 'gpu'; a device is 'cpu', 'cuda' or 'cuda:N'."),
        ({"precision": "fp8"}, OptionError, "precision must be one of fp32, fp16, bf16, int8; got 'fp8'."),
        ({"precision": "fp16", "engine": "toy"}, OptionError, "engine 'toy' does not honour precision='fp16'"),
        ({"threads": 0}, OptionError, "threads must be a positive integer or None; got 0"),
    ],
)
def test_an_option_that_cannot_be_is_named(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        xrt.XRTModule(relu(), **{"engine": "toy", **options})
    assert text in str(caught.value)


def test_a_device_that_no_listed_engine_runs_on_is_refused() -> None:
    with pytest.raises(
        DeviceError, match=r"^device 'cuda' was asked for, but no engine of the list runs on it: picky runs on cpu$"
    ):
        xrt.XRTModule(relu(), engine=Picky(), device="cuda")


def test_a_model_that_breaks_a_rule_is_refused() -> None:
    with pytest.raises(ModelError, match="Did you mean"):
        xrt.XRTModule(Function((Value("x"),), (Value("y"),), (Node("Relo", ("x",), ("y",)),), opsets={"": 14}), engine="toy")


def test_a_closed_module_says_so_and_leaves_others_alone() -> None:
    cache = CompileCache(capacity=1)
    with xrt.XRTModule(relu(), engine="toy", cache=cache) as m:
        m(X)
    other = xrt.XRTModule(relu(), engine="toy", cache=cache)
    np.testing.assert_array_equal(other(X), np.maximum(X, 0))
    for use in (lambda: m(X), m.compile, lambda: m.save("closed.xrt")):
        with pytest.raises(InputError, match=r"^the module is closed; make a new XRTModule$"):
            use()


def test_buffers_given_twice_are_refused() -> None:
    buffer = np.empty((2, 3), "float32")
    with (
        xrt.XRTModule(relu(), engine="toy") as m,
        pytest.raises(InputError, match=r"^out= is given twice, as an argument and in options; give"),
    ):
        m(X, out=buffer, options=RunOptions(out=[buffer]))


def test_a_stream_on_cpu_is_refused() -> None:
    with pytest.raises(DeviceError, match="a stream was given, but the module runs on cpu, which has none; pass stream=None"):
        xrt.XRTModule(relu(), engine="toy")(X, options=RunOptions(stream=object()))


# ---------------------------------------------------------------------- looking inside


def test_compile_without_examples_needs_types_that_tell_enough() -> None:
    assert len(xrt.XRTModule(relu(), engine="toy").compile().launches) == 1
    with pytest.raises(InputError, match="the graph is traced for its inputs"):
        xrt.XRTModule(Affine(), engine="toy").compile()
    with pytest.raises(InputError, match="engine 'picky' needs every extent fixed"):
        xrt.XRTModule(relu(("N", 3)), engine=[Picky(), "toy"]).compile()


def test_plans_are_had_without_compiling() -> None:
    cache = CompileCache()
    m = xrt.XRTModule(chain("Relu", "Neg"), engine=[Picky(), "toy"], cache=cache)
    assert len(m.plan.launches) == len(m.plan_for(X).launches) == 2
    assert cache.statistics.misses == 0


def test_a_profile_and_the_memory_of_the_last_signature() -> None:
    m = xrt.XRTModule(chain("Relu", "Neg"), engine=[Picky(), "toy"])
    m(X, options=RunOptions(profile=True))
    assert [t.calls for t in m.profile().launches] == [1, 1]
    assert str(m.profile()).splitlines()[-1] == f"on {m.threads} thread{'s' * (m.threads > 1)}"
    assert m.memory().crossing == 2 * X.nbytes


def test_stages_are_dumped_as_text_onnx_and_dot(tmp_path: Path) -> None:
    xrt.XRTModule(chain("Relu", "Neg"), engine=[Picky(), "toy"], dump_subgraph_dir=tmp_path)(X)
    stems = {p.stem for p in tmp_path.iterdir()}
    assert {"1-model", "2-simplified", "3-plan", "xrt_picky_0", "xrt_toy_1"} <= stems
    for stem in ("1-model", "xrt_toy_1"):
        assert {p.suffix for p in tmp_path.glob(f"{stem}.*")} == {".txt", ".onnx", ".dot"}
    np.testing.assert_array_equal(xrt.XRTModule(tmp_path / "xrt_toy_1.onnx", engine="toy")(X), -X)


def test_constants_are_folded_unless_asked_not_to() -> None:
    function = Function(
        (Value("x", TensorType(DType.FLOAT32, (2, 3))),),
        (Value("y"),),
        (Node("Neg", ("w",), ("v",)), Node("Add", ("x", "v"), ("y",))),
        {"w": Constant(X)},
        {"": 14},
    )
    folded, saved = (xrt.XRTModule(function, engine="toy", fold_constants=fold) for fold in (True, False))
    np.testing.assert_array_equal(folded(X), saved(X))
    assert [len(m.plan.launches[0].nodes) for m in (folded, saved)] == [1, 2]


def test_a_pin_on_a_node_that_was_folded_is_no_mistake() -> None:
    function = Function(
        (Value("x", TensorType(DType.FLOAT32, (2, 3))),),
        (Value("y"),),
        (Node("Neg", ("w",), ("v",), name="minus"), Node("Add", ("x", "v"), ("y",), name="plus")),
        {"w": Constant(X)},
        {"": 14},
    )
    pinned = xrt.XRTModule(function, engine="toy", pins=["name:minus=toy"])
    np.testing.assert_array_equal(pinned(X), np.zeros((2, 3)))
    output = "pin name:minus=toy holds nothing: its nodes were computed ahead of time, or no output needs them"
    assert str(pinned.explain()).splitlines()[-1] == output
    assert pinned.explain().to_dict()["idle_pins"] == ("name:minus=toy",)
    with pytest.raises(PlanError, match="pin 'name:minos=toy' matches no node"):
        xrt.XRTModule(function, engine="toy", pins=["name:minos=toy"])(X)


def test_attributes_are_part_of_the_signature() -> None:
    cache = CompileCache()
    type_ = TensorType(DType.FLOAT32, (2, 3))
    for axis in (0, 1):
        node = Node("Softmax", ("x",), ("y",), read_attributes({"axis": axis}))
        m = xrt.XRTModule(Function((Value("x", type_),), (Value("y"),), (node,), opsets={"": 14}), engine="toy", cache=cache)
        np.testing.assert_allclose(m(X).sum(axis=axis), 1, rtol=1e-6)
    assert cache.statistics.misses == 2


CHOSEN = "is the default: the first installed of ort, openvino, torch, xla, toy that supports the whole model"


def atan(dtype=DType.FLOAT64):
    """ONNX Runtime and OpenVINO support it in float32 alone."""
    x, y = (Value(name, TensorType(dtype, (2, 3))) for name in "xy")
    return Function((x,), (y,), (Node("Atan", ("x",), ("y",)),), opsets={"": 14})


class Atan(xrt.Graph):
    def build(self, x):
        return xrt.ops.Atan(x)


def test_the_first_engine_that_supports_the_model_runs_it():
    with xrt.XRTModule(relu()) as m:
        np.testing.assert_array_equal(m(X), np.maximum(X, 0))
        assert m.engines == ("ort", "toy")
        assert f"engine 'ort' {CHOSEN}" in str(m.explain())


def test_an_engine_that_declines_a_node_leaves_the_whole_model_to_the_next():
    with xrt.XRTModule(atan()) as m:
        np.testing.assert_allclose(m(X.astype("float64")), np.arctan(X.astype("float64")))
        assert m.engines == ("torch", "toy") and {launch.engine for launch in m.plan.launches} == {"torch"}
        text = str(m.explain())
        assert "engine 'ort' does not support the whole model: 'y' (Atan): ONNX Runtime" in text
        assert "engine 'openvino' does not support the whole model: 'y' (Atan)" in text
        assert f"engine 'torch' {CHOSEN}" in text


def test_a_graph_is_decided_by_the_types_of_its_first_call():
    for dtype, engine in (("float32", "ort"), ("float64", "torch")):
        with xrt.XRTModule(Atan()) as m:
            np.testing.assert_allclose(m(X.astype(dtype)), np.arctan(X.astype(dtype)), rtol=1e-6)
            assert {launch.engine for launch in m.plan.launches} == {engine}


def test_a_named_engine_stays_what_it_is():
    with xrt.XRTModule(relu(), engine="toy") as m:
        m(X)
        assert m.engines == ("toy",) and CHOSEN not in str(m.explain())


def test_options_that_need_a_named_engine_say_so():
    with pytest.raises(OptionError, match="pass engine='auto'"):
        xrt.XRTModule(relu(), max_error=0.01)
    with pytest.raises(OptionError, match="a constraint on precision is for an engine that computes in it"):
        xrt.XRTModule(relu(), precision=["bf16", "Softmax=fp32"])


def test_plans_in_the_cache_decide_without_the_model(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(atan(), path)
    for _ in range(2):
        with xrt.XRTModule(path, cache=tmp_path / "cache") as m:
            np.testing.assert_allclose(m(X.astype("float64")), np.arctan(X.astype("float64")))
            assert m.engines == ("torch", "toy")


def test_libraries_of_engines_behind_the_chosen_one_are_not_imported():
    code = (
        "import sys, numpy, xrt\n"
        "from tests.module.small_models import relu, X\n"
        "xrt.XRTModule(relu())(X)\n"
        "print([name for name in ('onnxruntime', 'openvino', 'torch', 'jax') if name in sys.modules])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "['onnxruntime']\n", run.stderr


def test_every_default_engine_is_registered():
    assert set(DEFAULT_ENGINES) <= set(names())


@pytest.mark.parametrize(
    ("asked", "here", "found"),
    [
        ({"toy": "cpu"}, "cpu", {}),
        ({"toy": "cuda"}, "cpu", {"toy": "cuda"}),
        ({"toy": "cuda:0"}, "cuda", {}),
        ({"toy": "cpu"}, "cuda", {"toy": "cpu"}),
        ({"toy": "cuda", "toy{native=off}": "cpu"}, "cpu", {"toy": "cuda"}),
        ({"nobody": "cuda"}, "cpu", {}),
    ],
)
def test_only_what_differs_from_the_module_is_kept(asked: Mapping[str, str], here: str, found: Mapping[str, str]) -> None:
    engines = [registry.create("toy"), registry.create("toy{native=off}")]
    others = {spec: device for spec, device in parse_devices(engines, asked, here, ["nobody"]).items() if spec == "toy"}
    assert others == found


def test_an_engine_that_is_not_in_the_list_and_one_that_cannot_run_there_are_reported() -> None:
    engines = [registry.create("iree")]
    with pytest.raises(OptionError, match="devices names 'tyo', which is not in the list of engines"):
        parse_devices(engines, {"tyo": "cpu"}, "cpu")
    with pytest.raises(DeviceError, match="devices asks for iree on 'cuda', and it runs on cpu"):
        parse_devices(engines, {"iree": "cuda"}, "cpu")
