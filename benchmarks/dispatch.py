"""What does XRT cost on top of an engine?

Two questions. (1) A tiny graph, a 2x3 Relu: one call of the module against one call of the engine's own Python API with
its defaults and the same threads, NumPy in and fresh NumPy out. (2) One model of about 10 ms cut into 8 regions of
one engine: the module's call against the sum of the same eight executables called one after the other by hand, and
against the uncut model (the rest is lost fusion, not dispatch).

    python benchmarks/dispatch.py [--json] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

import xrt
from xrt.bench import Ratio, interleaved, machine, ratio
from xrt.engines import CompileContext, registry
from xrt.formats import onnx as onnx_format
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, attributes_of
from xrt.runtime import available_cores

REGIONS = 8


def relu() -> Function:
    value = TensorType(DType.FLOAT32, (2, 3))
    return Function((Value("x", value),), (Value("y", value),), (Node("Relu", ("x",), ("y",)),), opsets={"": 14}, name="relu")


def convolutions(count: int = REGIONS, channels: int = 64, size: int = 56) -> Function:
    """A chain of blocks, each a 3x3 convolution, a Relu and an addition of its input: about 10 ms on two cores."""
    rng = np.random.default_rng(0)
    shape = TensorType(DType.FLOAT32, (1, channels, size, size))
    nodes, constants = [], {}
    for i in range(count):
        constants[f"w{i}"] = Constant((rng.standard_normal((channels, channels, 3, 3)) * 0.03).astype("float32"))
        nodes += [
            Node("Conv", (f"x{i}", f"w{i}"), (f"c{i}",), attributes_of({"pads": [1, 1, 1, 1]})),
            Node("Relu", (f"c{i}",), (f"r{i}",)),
            Node("Add", (f"r{i}", f"x{i}"), (f"x{i + 1}",)),
        ]
    types = {name: shape for node in nodes for name in node.outputs}
    ends = (Value("x0", shape),), (Value(f"x{count}", shape),)
    return Function(*ends, tuple(nodes), constants, {"": 14}, types=types, name="convolutions")


# ---------------------------------------------------------------------- the engines' own calls


def own_ort(function: Function, threads: int) -> Callable[[Any], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = onnx_format.lowest_model(function).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = function.inputs[0].name
    return lambda x: session.run(None, {name: x})[0]


def own_tvm(function: Function, threads: int) -> Callable[[Any], Any]:
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = from_onnx(onnx_format.lowest_model(function))
    machine_ = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    return lambda x: machine_["main"](tvm.runtime.tensor(x)).numpy()


def own_toy(function: Function, threads: int) -> Callable[[Any], Any]:
    """The same thing written by hand in NumPy."""
    return lambda x: np.maximum(x, 0)


OWN = {"toy": own_toy, "ort": own_ort, "tvm": own_tvm}


# ---------------------------------------------------------------------- the two questions


def tiny(engine: str, rounds: int) -> dict[str, Any]:
    """Time the module against the engine's own call on a 2x3 Relu."""
    function, threads = relu(), available_cores()
    x = np.random.default_rng(0).standard_normal((2, 3)).astype("float32")
    module = xrt.XRTModule(function, engine=engine, strict=True)
    own = OWN[engine](function, threads)
    np.testing.assert_allclose(module(x), own(x))
    times = interleaved({"module": lambda: module(x), "own": lambda: own(x)}, rounds=rounds)
    found = ratio(times["module"], [times["own"]])
    return {
        "engine": engine,
        "module_us": 1e6 * times["module"].median,
        "own_us": 1e6 * times["own"].median,
        "ratio": asdict(found),
    }


def eight(engine: str, rounds: int) -> dict[str, Any]:
    """Time a model in eight regions against the regions alone, and against the model in one."""
    function = convolutions()
    x = np.random.default_rng(0).standard_normal(function.inputs[0].type.shape).astype("float32")  # type: ignore[union-attr,arg-type]  # static
    cut = xrt.XRTModule(function, engine=engine, strict=True, maximum_nodes=len(function.nodes) // REGIONS)
    whole = xrt.XRTModule(function, engine=engine, strict=True)
    regions = by_hand(cut, x)
    np.testing.assert_allclose(cut(x), whole(x), rtol=1e-3, atol=1e-4)
    calls = {f"region {i}": call for i, call in enumerate(regions)}
    times = interleaved({"cut": lambda: cut(x), "whole": lambda: whole(x), **calls}, rounds=rounds)
    alone = [times[name] for name in calls]
    return {
        "engine": engine,
        "regions": len(cut.plan.launches),
        "cut_ms": 1e3 * times["cut"].median,
        "whole_ms": 1e3 * times["whole"].median,
        "to_regions_alone": asdict(ratio(times["cut"], alone)),
        "to_one_region": asdict(ratio(times["cut"], [times["whole"]])),
    }


def by_hand(module: xrt.XRTModule, x: Any) -> list[Callable[[], Any]]:
    """Return one call per region of the module's plan, each on the values that reach it."""
    values = {module.inputs[0].name: x}
    calls = []
    for launch in module.plan.launches:
        executable = registry.create(launch.engine).compile(launch.function, CompileContext(threads=available_cores()))
        executable.prepare()
        given = [values[name] for name in launch.inputs]
        values.update(zip(launch.outputs, executable.run(given), strict=True))
        calls.append(lambda executable=executable, given=given: executable.run(given))
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=30, help="interleaved rounds (default 30)")
    parser.add_argument("--engines", default="toy,ort,tvm", help="which engines (default toy,ort,tvm)")
    arguments = parser.parse_args()
    engines = arguments.engines.split(",")
    figures = {
        "machine": machine("onnxruntime", "apache-tvm"),
        "tiny": [tiny(engine, arguments.rounds) for engine in engines],
        "eight": [eight(engine, arguments.rounds) for engine in engines if engine != "tvm"],
    }
    print(json.dumps(figures, indent=2) if arguments.json else report(figures))


def report(figures: dict[str, Any]) -> str:
    lines = [figures["machine"], "", "a 2x3 Relu: the module's call against the engine's own"]
    lines += [
        f"  {row['engine']:4} {row['module_us']:9.2f} us against {row['own_us']:9.2f} us: {Ratio(**row['ratio'])} x"
        for row in figures["tiny"]
    ]
    lines += ["", "a model in 8 regions: against the same regions called by hand; against the model in one region"]
    lines += [
        f"  {row['engine']:4} {row['cut_ms']:9.2f} ms: {Ratio(**row['to_regions_alone'])} x; "
        f"one region {row['whole_ms']:.2f} ms: {Ratio(**row['to_one_region'])} x"
        for row in figures["eight"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
