"""XRTModule as its user meets it: models of every kind, signatures, outputs, options, fallbacks and errors."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from xrt.cache import CompileCache
from xrt.engines import CompileContext, Executable, ExecutionOptions, GraphCompiler, RunOptions, registry
from xrt.errors import (
    CompileRefused,
    DeviceError,
    FallbackWarning,
    InputError,
    ModelError,
    OptionError,
    PlanError,
    SignatureWarning,
    UnknownEngine,
)
from xrt.formats import onnx
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, attributes_of

ENGINES = ["toy", "ort", "tvm", ["tvm", "ort"]]


class Affine(xrt.Graph):
    def build(self, x, y):
        return {"sum": xrt.ops.Relu(x + y), "product": x * y}


def relu(shape: tuple[Any, ...] = (2, 3)) -> Function:
    return Function(
        (Value("x", TensorType(DType.FLOAT32, shape)),), (Value("y"),), (Node("Relu", ("x",), ("y",)),), opsets={"": 14}
    )


def chain(*ops: str, **fields: Any) -> Function:
    """x -> op -> h0 -> op -> h1 ... -> y"""
    names = ["x", *(f"h{i}" for i in range(len(ops) - 1)), "y"]
    nodes = tuple(Node(op, (names[i],), (names[i + 1],), name=f"node{i}") for i, op in enumerate(ops))
    type_ = TensorType(DType.FLOAT32, (2, 3))
    return Function((Value("x", type_),), (Value("y", type_),), nodes, opsets={"": 20}, **fields)


X = np.array([[-1, 0, 1], [2, -3, 4]], "float32")


@dataclass(frozen=True)
class Picky(GraphCompiler):
    """Takes what `takes` names, compiles on toy, and refuses at compile what `refuses` names."""

    name: ClassVar[str] = "picky"
    takes: str = "Relu"
    refuses: str = ""

    def why_not(self, node: Node, function: Function) -> str | None:
        return None if node.op_type in self.takes.split("|") else f"{node.op} is not among {self.takes}"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        culprits = [n.name for n in function.nodes if n.op_type in self.refuses.split("|")]
        if culprits:
            raise CompileRefused(f"picky cannot compile {culprits[0]}", culprits)
        return registry.create("toy").compile(function, context)


# ---------------------------------------------------------------------- kinds of models


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_a_graph_written_in_python_runs_on_every_engine(engine: Any) -> None:
    m = xrt.XRTModule(Affine(), engine=engine, strict=True)
    total, product = m(X, y=2 * X)
    np.testing.assert_array_equal(total, np.maximum(3 * X, 0))
    np.testing.assert_array_equal(product, 2 * X * X)
    assert [v.name for v in m.outputs] == ["sum", "product"]


def test_onnx_comes_as_path_bytes_and_message(tmp_path: Path) -> None:
    path = tmp_path / "relu.onnx"
    onnx.save(relu(), path)
    for model in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), onnx.to_model(relu())):
        np.testing.assert_array_equal(xrt.XRTModule(model)(X), np.maximum(X, 0))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (3, "a model is an xrt.Graph, a Function, or ONNX as a path, bytes or ModelProto; got a builtins.int"),
        (Affine, "Affine is a class; pass an instance: XRTModule(Affine())"),
    ],
)
def test_what_is_no_model_is_named(model: Any, text: str) -> None:
    with pytest.raises(ModelError) as caught:
        xrt.XRTModule(model)
    assert str(caught.value) == text


# ---------------------------------------------------------------------- signatures


def test_a_graph_is_traced_once_per_signature() -> None:
    traced = []

    class Counting(xrt.Graph):
        def build(self, x):
            traced.append(x.shape)
            return xrt.ops.Relu(x)

    m = xrt.XRTModule(Counting())
    for shape in [(2, 3), (4,), (2, 3), (4,)]:
        m(np.zeros(shape, "float32"))
    assert traced == [(2, 3), (4,)]


def test_symbolic_extents_stay_symbolic_where_every_engine_keeps_them() -> None:
    cache = CompileCache()
    m = xrt.XRTModule(relu(("N", 3)), engine="toy", cache=cache)
    for rows in range(1, 5):
        assert m(np.ones((rows, 3), "float32")).shape == (rows, 3)
    assert cache.statistics.misses == 1


def test_symbolic_extents_are_fixed_for_an_engine_that_needs_it() -> None:
    cache = CompileCache()
    m = xrt.XRTModule(relu(("N", 3)), engine=[Picky(), "toy"], cache=cache)
    for rows in (1, 2, 1):
        assert m(np.ones((rows, 3), "float32")).shape == (rows, 3)
    assert cache.statistics.misses == 2
    assert m.plan.launches[0].function.inputs[0].type == TensorType(DType.FLOAT32, (1, 3))


def test_too_many_signatures_are_warned_of_and_still_right() -> None:
    m = xrt.XRTModule(relu(("N", 3)), engine=[Picky(), "toy"], max_signatures=2)
    with pytest.warns(SignatureWarning, match="has met more than max_signatures=2 signatures"):
        for rows in (1, 2, 3):
            assert m(np.ones((rows, 3), "float32")).shape == (rows, 3)


def test_two_modules_of_one_model_share_the_compile() -> None:
    cache = CompileCache()
    for _ in range(2):
        xrt.XRTModule(relu(), cache=cache)(X)
    assert (cache.statistics.hits, cache.statistics.misses) == (1, 1)
    xrt.XRTModule(relu(), cache=cache, force_compile=True)(X)
    assert cache.statistics.misses == 2


def test_many_threads_call_at_once() -> None:
    cache = CompileCache()
    m = xrt.XRTModule(chain("Relu", "Neg", "Abs"), engine=[Picky(), "toy"], cache=cache)
    inputs = [np.full((2, 3), i, "float32") for i in range(16)]
    results: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda i=i: results.update({i: [m(inputs[i]) for _ in range(20)]})) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(y, inputs[i]) for i, found in results.items() for y in found)
    assert len(results) == 16
    assert cache.statistics.misses == 2


# ---------------------------------------------------------------------- outputs


def test_inner_values_are_fetched_by_name() -> None:
    m = xrt.XRTModule(chain("Neg", "Relu"))
    found = m(X, fetch=["h0", "y", "x"])
    assert list(found) == ["h0", "y", "x"]
    np.testing.assert_array_equal(found["h0"], -X)
    assert not np.shares_memory(found["x"], X)
    assert [v.name for v in m.outputs] == ["y"]
    with pytest.raises(InputError, match=r"^fetch asks for 'h7', which is no value of the model\.$"):
        m(X, fetch=["h7"])
    with pytest.raises(InputError, match=r"^fetch must be a list of value names; got the string 'h0'; pass fetch=\['h0'\]$"):
        m(X, fetch="h0")


@pytest.mark.parametrize("engine", ["toy", "ort", "tvm"])
def test_a_callers_buffer_is_filled(engine: str) -> None:
    m = xrt.XRTModule(relu(), engine=engine, strict=True)
    out = np.full((2, 3), 7, "float32")
    assert m(X, out=out) is out
    np.testing.assert_array_equal(out, np.maximum(X, 0))


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (np.empty((3, 2), "float32"), "out[0] for output 'y' must be float32[2,3]; got float32[3, 2]"),
        (np.empty((2, 3), "float64"), "out[0] for output 'y' must be float32[2,3]; got float64[2, 3]"),
        (
            np.empty((3, 2), "float32").T,
            "out[0] for output 'y' is not C-contiguous; a buffer must be a writeable, C-contiguous array",
        ),
        ([np.empty((2, 3), "float32")] * 2, "out has 2 buffers; the model has 1 output (y): give one, or None, for each"),
        (X, "out[0] for output 'y' overlaps input 'x'; give a buffer of its own"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(out: Any, text: str) -> None:
    with pytest.raises(InputError) as caught:
        xrt.XRTModule(relu())(X, out=out)
    assert str(caught.value) == text


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_no_output_shares_memory_with_anything(engine: Any) -> None:
    """Inputs, constants and repeated values that are outputs are copies."""
    type_ = TensorType(DType.FLOAT32, (2, 3))
    function = Function(
        (Value("x", type_),),
        tuple(Value(n, type_) for n in ("x", "y", "y", "w", "z")),
        (Node("Relu", ("x",), ("y",)), Node("Reshape", ("y", "shape"), ("z",))),
        {"w": Constant(X), "shape": Constant(np.array([2, 3]))},
        {"": 14},
    )
    m, x = xrt.XRTModule(function, engine=engine), X.copy()
    results = [*m(x), *m(x)]
    for i, a in enumerate(results):
        assert not np.shares_memory(a, x) and not np.shares_memory(a, function.constants["w"].array)
        assert not any(np.shares_memory(a, b) for b in results[:i])


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_an_alias_updates_the_input(engine: Any) -> None:
    m = xrt.XRTModule(chain("Neg", aliases=(("x", "y"),)), engine=engine)
    for _ in range(2):
        x = X.copy()
        assert m(x) is x
        np.testing.assert_array_equal(x, -X)


# ---------------------------------------------------------------------- lists of engines


def test_what_nobody_named_takes_goes_to_the_reference_with_one_warning() -> None:
    m = xrt.XRTModule(chain("Relu", "Neg"), engine=Picky())
    with pytest.warns(FallbackWarning) as caught:
        m(X)
        m(X, fetch=["h0"])
    assert [Path(w.filename).name for w in caught] == ["test_module.py"], "a warning points at the caller's line"
    (message,) = [str(w.message) for w in caught]
    assert message == (
        "1 node(s) run on 'toy', which was not named: first 'node1': Neg is not among Relu. m.explain() lists them; name 'toy' "
        "in the list to accept it, or pass strict=True to refuse it"
    )
    assert "node1" in str(m.explain())
    assert "Neg is not among Relu" in str(m.explain())


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
        ({"device": "gpu"}, DeviceError, "unknown device 'gpu'; a device is 'cpu', 'cuda' or 'cuda:N'."),
        ({"precision": "fp8"}, OptionError, "precision must be one of fp32, fp16, bf16, int8; got 'fp8'."),
        ({"precision": "fp16"}, OptionError, "engine 'toy' does not honour precision='fp16'"),
        ({"use_fp16": True}, OptionError, "engine 'toy' does not honour precision='fp16'"),
        ({"use_fp16": True, "precision": "bf16"}, OptionError, "use_fp16=True contradicts precision='bf16'; give one of them"),
        (
            {"max_workspace_size": 10},
            OptionError,
            "engine 'toy' does not honour max_workspace_size=10: nothing limits what it allocates while it computes",
        ),
        ({"max_workspace_size": 10, "engine": "ort"}, OptionError, "its arena can be limited for the whole process only"),
        ({"max_workspace_size": 10, "engine": "tvm"}, OptionError, "engine 'tvm' does not honour max_workspace_size=10: nothing"),
        ({"threads": 0}, OptionError, "threads must be a positive integer or None; got 0"),
        ({"max_signatures": 0}, OptionError, "max_signatures must be a positive integer; got 0"),
    ],
)
def test_an_option_that_cannot_be_is_named(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        xrt.XRTModule(relu(), **options)
    assert text in str(caught.value)


def test_a_device_that_no_listed_engine_runs_on_is_refused() -> None:
    with pytest.raises(
        DeviceError, match=r"^device 'cuda' was asked for, but no engine of the list runs on it: picky runs on cpu$"
    ):
        xrt.XRTModule(relu(), engine=Picky(), device="cuda")


def test_options_have_homes_and_keywords_reach_them() -> None:
    m = xrt.XRTModule(
        relu(), execution=ExecutionOptions(threads=1), clustering=xrt.ClusteringOptions(minimum_nodes=2), maximum_nodes=5
    )
    assert (m._settings.clustering.minimum_nodes, m._settings.clustering.maximum_nodes) == (2, 5)
    assert m._engines.context.threads == 1


def test_a_model_that_breaks_a_rule_is_refused() -> None:
    with pytest.raises(ModelError, match="Did you mean"):
        xrt.XRTModule(Function((Value("x"),), (Value("y"),), (Node("Relo", ("x",), ("y",)),), opsets={"": 14}))


def test_a_closed_module_says_so_and_leaves_others_alone() -> None:
    cache = CompileCache(capacity=1)
    with xrt.XRTModule(relu(), cache=cache) as m:
        m(X)
    other = xrt.XRTModule(relu(), cache=cache)
    np.testing.assert_array_equal(other(X), np.maximum(X, 0))
    for use in (lambda: m(X), m.compile, lambda: m.save("closed.xrt")):
        with pytest.raises(InputError, match=r"^the module is closed; make a new XRTModule$"):
            use()


def test_buffers_given_twice_are_refused() -> None:
    buffer = np.empty((2, 3), "float32")
    with (
        xrt.XRTModule(relu()) as m,
        pytest.raises(InputError, match=r"^out= is given twice, as an argument and in options; give"),
    ):
        m(X, out=buffer, options=RunOptions(out=[buffer]))


def test_a_stream_on_cpu_is_refused() -> None:
    with pytest.raises(DeviceError, match="a stream was given, but the module runs on cpu, which has none; pass stream=None"):
        xrt.XRTModule(relu())(X, options=RunOptions(stream=object()))


# ---------------------------------------------------------------------- looking inside


def test_compile_without_examples_needs_types_that_tell_enough() -> None:
    assert len(xrt.XRTModule(relu()).compile().launches) == 1
    with pytest.raises(InputError, match="the graph is traced for its inputs"):
        xrt.XRTModule(Affine()).compile()
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
    np.testing.assert_array_equal(xrt.XRTModule(tmp_path / "xrt_toy_1.onnx")(X), -X)


def test_constants_are_folded_unless_told_not_to() -> None:
    function = Function(
        (Value("x", TensorType(DType.FLOAT32, (2, 3))),),
        (Value("y"),),
        (Node("Neg", ("w",), ("v",)), Node("Add", ("x", "v"), ("y",))),
        {"w": Constant(X)},
        {"": 14},
    )
    folded, kept = (xrt.XRTModule(function, fold_constants=fold) for fold in (True, False))
    np.testing.assert_array_equal(folded(X), kept(X))
    assert [len(m.plan.launches[0].nodes) for m in (folded, kept)] == [1, 2]


def test_a_pin_on_a_node_that_was_folded_is_no_mistake() -> None:
    function = Function(
        (Value("x", TensorType(DType.FLOAT32, (2, 3))),),
        (Value("y"),),
        (Node("Neg", ("w",), ("v",), name="minus"), Node("Add", ("x", "v"), ("y",), name="plus")),
        {"w": Constant(X)},
        {"": 14},
    )
    pinned = xrt.XRTModule(function, pins=["name:minus=toy"])
    np.testing.assert_array_equal(pinned(X), np.zeros((2, 3)))
    told = "pin name:minus=toy holds nothing: its nodes were computed ahead of time, or no output needs them"
    assert str(pinned.explain()).splitlines()[-1] == told
    assert pinned.explain().to_dict()["idle_pins"] == ("name:minus=toy",)
    with pytest.raises(PlanError, match="pin 'name:minos=toy' matches no node"):
        xrt.XRTModule(function, pins=["name:minos=toy"])(X)


def test_attributes_are_part_of_the_signature() -> None:
    cache = CompileCache()
    type_ = TensorType(DType.FLOAT32, (2, 3))
    for axis in (0, 1):
        node = Node("Softmax", ("x",), ("y",), attributes_of({"axis": axis}))
        m = xrt.XRTModule(Function((Value("x", type_),), (Value("y"),), (node,), opsets={"": 14}), cache=cache)
        np.testing.assert_allclose(m(X).sum(axis=axis), 1, rtol=1e-6)
    assert cache.statistics.misses == 2
