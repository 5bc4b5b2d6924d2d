"""Valid files of every kind that XRT reads: small ones, which between them have all that a reader has a branch for."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, parser

from tests.malformed_inputs.case import Files
from xrt.cache import CompileCache, Store
from xrt.cache.entries import CacheEntry, StoredFailure
from xrt.cache.signature import Signature
from xrt.engines import CompileContext
from xrt.engines.contract import registry
from xrt.formats.onnx import save, to_model
from xrt.formats.placement_file import Baseline, SearchRecord, dumps
from xrt.formats.text import to_text
from xrt.graph import Function
from xrt.module import XRTModule
from xrt.partition import ClusteringOptions, Pin, Plan, partition
from xrt.placement.race import make_candidate
from xrt.placement.records import create_lock, list_node_ranges
from xrt.placement.result import PlacementRequest, TuningResult
from xrt.testing import corpus
from xrt.testing.corpus.entry import f32, graph, i64, node

_LARGE = 1 << 16
"""Bytes of a tensor that the reader of ONNX does not hand to protobuf."""


def _functions() -> Iterator[Function]:
    """Yield Functions of the corpus: bodies, sequences, strings, small types, aliases, control edges."""
    seen: set[object] = set()
    for entry in corpus.CORPUS:
        kinds = {type(value.type).__name__ for value in (*entry.function.inputs, *entry.function.outputs)}
        shape = frozenset(
            kinds | {inner.op for _, inner in entry.function.walk()} & {"If", "Loop", "Scan", "Constant", "StringConcat"}
        )
        if shape not in seen or entry.function.aliases:
            seen.add(shape)
            yield entry.function


def _weighted(elements: int = _LARGE // 4 + 64) -> Function:
    weights = {"w": f32(np.arange(elements)), "small": f32(1, 2, 3), "axes": i64(0)}
    x = f"float32[{elements}]"
    return graph(
        {"x": x}, {"y": x, "z": "float32[1,3]"}, node("Mul", "x w", "y"), node("Unsqueeze", "small axes", "z"), constants=weights
    )


def models() -> tuple[Files, ...]:
    """Return ONNX models: the corpus's forms, local functions, sparse weights, and one with a large weight."""
    written = [to_model(function) for function in _functions()]
    return tuple({"model.onnx": model.SerializeToString()} for model in (*written, _local(), _sparse(), to_model(_weighted())))


def _local() -> ModelProto:
    return parser.parse_model("""<ir_version: 8, opset_import: ["": 18, "own": 1]>
        main (float[2] x) => (float[2] y) { t = own.Twice(x)  y = own.Twice(t) }
        <domain: "own", opset_import: ["": 18]> Twice (a) => (b) { b = Add(a, a) }""")


def _sparse() -> ModelProto:
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    indices = helper.make_tensor("at", TensorProto.INT64, [2, 2], [0, 1, 2, 2])
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "main", value[:1], value[1:])
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 3]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def external() -> tuple[Files, ...]:
    """Return a model whose weights lie beside it."""
    with TemporaryDirectory(prefix="xrt-") as folder:
        save(_weighted(300), Path(folder) / "model.onnx", external_data=True)
        names = sorted((path.name for path in Path(folder).iterdir()), key=lambda name: name != "model.onnx")
        return ({name: (Path(folder) / name).read_bytes() for name in names},)


def texts() -> tuple[Files, ...]:
    """Return Functions as text."""
    return tuple({"function.txt": to_text(function).encode()} for function in (*_functions(), _weighted(40)))


def plans() -> tuple[Files, ...]:
    """Return Plans as messages."""
    toy = registry.create("toy")
    options = ClusteringOptions(maximum_nodes=1, pins=(Pin.parse("name:*=toy"),))
    functions = [function for function in _functions() if function.nodes][:8]
    return tuple({"plan.pb": partition(function, [toy], options, implicit="toy").to_bytes()} for function in functions)


def bundles() -> tuple[Files, ...]:
    """Return saved modules: one that was called, one that was not."""
    results = []
    with TemporaryDirectory(prefix="xrt-") as folder:
        for number in range(2):
            path = Path(folder) / f"{number}.xrt"
            with XRTModule(_weighted(300), engine="toy", cache=CompileCache()) as module:
                if number:
                    module(np.zeros(300, np.float32))
                module.save(path)
            results.append({"model.xrt": path.read_bytes()})
    return tuple(results)


def small_function() -> Function:
    """Return what the sample of a lock is of."""
    x = "float32[4]"
    nodes = [node("Abs", "x", "a"), node("Exp", "a", "b"), node("Neg", "b", "y")]
    return graph({"x": x}, {"y": x}, *nodes)


def _race() -> SearchRecord[Plan]:
    """Return a race of two plans of the small Function, that of three regions first."""
    function, toy = small_function(), registry.create("toy")
    plan, whole = (partition(function, [toy], item) for item in (ClusteringOptions(maximum_nodes=1), ClusteringOptions()))
    won = make_candidate(plan, "won", 1e-3, 9e-4, 2e-3, ratio=0.9, ratio_low=0.8, ratio_high=0.95, regions=(1e-4, 2e-4, 1e-4))
    return SearchRecord(candidates=(won, make_candidate(whole, "lost", note="slow", is_baseline=True)), rounds=12)


def placement_request() -> PlacementRequest:
    """Return the request to place the small Function on the reference."""
    return PlacementRequest(small_function(), (registry.create("toy"),), CompileContext())


def locks() -> tuple[Files, ...]:
    """Return locks: of a plan with another to hold it against, and of one without."""
    record, request = _race(), replace(placement_request(), clustering=ClusteringOptions(maximum_nodes=1))
    plan, whole = (candidate.plan for candidate in record.candidates)
    baseline = Baseline("toy", 0.9, 0.8, 0.95, 12, list_node_ranges(whole, request.function))
    results = [create_lock(TuningResult(plan, record), request, baseline=item) for item in (baseline, None)]
    return tuple({"model.lock": dumps(lock).encode()} for lock in results)


def _signature() -> Signature:
    return Signature((("format", "1"), ("engine", "toy.Toy"), ("version", "1"), ("function", "ab" * 32), ("entry", "float32[2]")))


def cache_entries() -> tuple[Files, ...]:
    """Return entries of the compile cache: one that holds something, one that remembers a failure."""
    results = []
    with TemporaryDirectory(prefix="xrt-") as folder:
        for content in ((b"compiled" * 40, None), (None, StoredFailure("CompileRefused", "too large", (0, 3)))):
            entries, signature = Store(Path(folder)).entries, _signature()
            entries.write(signature.key, CacheEntry(signature, *content))
            results.append({entries.get_path(signature.key).name: entries.get_path(signature.key).read_bytes()})
    return tuple(results)


def model_plans() -> tuple[Files, ...]:
    """Return what the cache keeps of a model's plans: two regions, weights in a file and beside the plans."""
    values = [["x", "float32", [2, "N"]]], [["h", "float32", [None, 4]]], [["y", "int64", []]]
    weights = [["ab" * 32, 0, 64, 4096], ["cd" * 32, -1, 0, 2048]]
    launches = [
        ["xrt_ort_0", "ort", ["matmul", "relu"], [], "main", "ef" * 32, values[0], values[1], ["h"], weights],
        ["xrt_tvm_1", "tvm{opt_level=2}", ["argmax"], ["xrt_ort_0"], "main", "01" * 32, values[1], values[2], ["y"], []],
    ]
    program = {"key": [[2, 3]], "inputs": values[0], "outputs": values[2], "launches": launches, "fetch": [], "compiled": []}
    program |= {"engines": ["ort", "tvm{opt_level=2}"], "implicit": None, "function": "", "plan": ""}
    files = [["/nowhere/model.onnx", [1, 2, 3, 4, 5]]]
    ends = {"inputs": values[0], "outputs": values[2]}
    facts = {"facts": {}, "files": files, **ends, "programs": [program]}
    return ({"plans.json": json.dumps(facts).encode()},)


def specs() -> tuple[Files, ...]:
    """Return specs of engines, and lists of them."""
    lines = ("toy", "toy{native=off}", "ort{config.session.intra_op.allow_spinning=0}", "ort{optimization='all'}, toy")
    return tuple({"spec.txt": line.encode()} for line in lines)


def pins() -> tuple[Files, ...]:
    """Return pins."""
    lines = ("Conv|Gemm=ort", "Softmax!=tvm", "name:/layer1/*=ort{a=1}", "name:*a?b*|c=toy", "com.microsoft.* = ort")
    return tuple({"pin.txt": line.encode()} for line in lines)


def arrays() -> tuple[Files, ...]:
    """Return arrays as NumPy writes them: alone, packed, and compressed."""
    packed, pressed = io.BytesIO(), io.BytesIO()
    several = {"x": f32(1, 2, 3), "y": np.zeros((4, 0), np.int8), "z": np.asfortranarray(np.ones((3, 5)))}
    np.savez(packed, **several)  # type: ignore[arg-type]  # names of arrays, and no option
    np.savez_compressed(pressed, **several)  # type: ignore[arg-type]
    alone = [{"x.npy": _npy(array)} for array in (f32(1, 2), np.array(3.5), np.array(["a", "bc"]), np.zeros((0, 7), bool))]
    return (*alone, {"x.npz": packed.getvalue()}, {"x.npz": pressed.getvalue()})


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
