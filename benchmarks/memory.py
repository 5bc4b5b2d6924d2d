"""How much memory does XRT take on top of an engine?

A model with many weights (an embedding, then layers of product, addition and tanh) is written to disk, with its weights inside
the file or in a file beside it (external data). New processes compile and run it: the engine alone, through its own Python API,
and XRT in one region and in several. Each process reports its peak of resident memory (VmHWM), including imports, and the memory
at its end. XRT's first process starts with an empty cache and saves; a second process then loads from the cache. The figures list
the weights that an engine packs (`m.memory()`): XRT keeps the model's weights too, because other regions and input sizes read
them.

Then a model of more than 2 GB, the limit of protobuf, in both forms. Only XRT reads the form with the weights inside the file.

    python benchmarks/memory.py [--json] [--megabytes N] [--large N] [--engines ort,toy] [--regions 1,8]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from output import ChildFailed, make_parser, open_session, print_figures, run_python

FORMS = ("external", "inline")
ROWS = 32
"""Rows of the activations, as in `memory_model.py`, which a measured process must not import: it imports `onnx`."""
TARGET, ALLOWANCE = 1.1, 50e6
"""The peak may be TARGET times that of the engine alone, plus ALLOWANCE bytes; the engine's packed weights are not counted."""


# ---------------------------------------------------------------------- one process


def read_resident_memory() -> dict[str, int]:
    """Return the peak and the current resident memory of this process in bytes, from /proc.

    ``ru_maxrss`` is not used, because that of a child process begins at its parent's.
    """
    lines = (line.split() for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    found = {words[0].rstrip(":"): words[1:] for words in lines if words}
    return {"peak": 1024 * int(found["VmHWM"][0]), "now": 1024 * int(found["VmRSS"][0])}


def open_ort(path: Path) -> Callable[[Any], Any]:
    session = open_session(path)
    return lambda ids: session.run(None, {"ids": ids})[0]


def open_tvm(path: Path) -> Callable[[Any], Any]:
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    machine = relax.VirtualMachine(tvm.compile(from_onnx(onnx.load(path)), target="llvm"), tvm.cpu())
    return lambda ids: machine["main"](tvm.runtime.tensor(ids)).numpy()


def open_numpy(path: Path) -> Callable[[Any], Any]:
    """Compute the model directly in NumPy, with the weights as the onnx package reads them."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    del model

    def run(ids: Any) -> Any:
        x = arrays["table"][ids]
        for i in range((len(arrays) - 1) // 2):
            x = np.tanh(x @ arrays[f"w{i}"] + arrays[f"b{i}"])
        return x

    return run


OPEN_ALONE = {"ort": open_ort, "tvm": open_tvm, "toy": open_numpy}


def measure(engine: str, regions: int, path: Path) -> dict[str, Any]:
    """Compile and run the model in this process, in this number of regions, or with the engine alone if ``regions`` is 0."""
    ids = np.arange(ROWS, dtype=np.int64)
    report: dict[str, Any] = {"launches": 0, "packed": 0, "memory": ""}
    if not regions:
        call = OPEN_ALONE[engine](path)
    else:
        import xrt
        from xrt.formats import onnx

        function = onnx.load(path)
        most = -(-len(function.nodes) // regions)
        call = module = xrt.XRTModule(function, engine=engine, strict=True, maximum_nodes=most if regions > 1 else None)
        module.compile()
    compiled = read_resident_memory()
    result = call(ids)
    if regions:
        memory = module.memory()
        packed = [use.nbytes or 0 for region in memory.regions for use in region.uses or () if not use.per_call]
        report = {"launches": len(memory.regions), "packed": sum(packed), "memory": str(memory)}
    return {**report, "compiled": compiled, **read_resident_memory(), "sum": float(np.abs(result).sum())}


# ---------------------------------------------------------------------- the comparison


def measure_process(engine: str, regions: int, path: Path, cache: Path) -> dict[str, Any]:
    """Measure in a new process."""
    try:
        return run_python(
            [__file__, "--process", engine, str(regions), str(path)], {"XRT_CACHE_DIR": str(cache), "XRT_CACHE": "on"}
        )
    except ChildFailed as error:
        return {"failed": str(error).replace(f"{path.parent}{os.sep}", "")}


def compare(engine: str, path: Path, regions: list[int]) -> dict[str, Any]:
    """Measure one engine alone and XRT with it, on one model."""
    rows = {}
    with tempfile.TemporaryDirectory() as directory:
        alone = measure_process(engine, 0, path, Path(directory))
        for count in regions:
            cache = Path(directory) / str(count)
            rows[count] = measure_process(engine, count, path, cache)
            rows[count]["again"] = measure_process(engine, count, path, cache)
            add_ratios(rows[count], alone)
            add_ratios(rows[count]["again"], alone)
    return {"engine": engine, "alone": alone, "xrt": rows}


def add_ratios(row: dict[str, Any], alone: dict[str, Any]) -> None:
    """Add the ratios to the engine alone."""
    if "failed" in row or "failed" in alone:
        return
    if not np.isclose(row["sum"], alone["sum"], rtol=1e-3):
        row["failed"] = f"the results differ: {row['sum']} against {alone['sum']}"
        return
    row["ratio"] = row["peak"] / alone["peak"]
    row["ratio_unpacked"] = (row["peak"] - row["packed"]) / alone["peak"]
    row["within"] = row["peak"] - row["packed"] <= TARGET * alone["peak"] + ALLOWANCE


def measure_all(megabytes: int, large: int, engines: list[str], regions: list[int]) -> dict[str, Any]:
    from memory_model import write_model

    from xrt.bench import machine

    figures: dict[str, Any] = {"machine": machine(), "megabytes": megabytes, "large": large, "forms": {}, "beyond": {}}
    for form in FORMS:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / f"{form}.onnx"
            write_model(path, megabytes, form)
            figures["forms"][form] = [compare(engine, path, regions) for engine in engines]
    for form in FORMS if large else ():
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / f"{form}.onnx"
            write_model(path, large, form)
            figures["beyond"][form] = compare(engines[0], path, regions[-1:])
    return figures


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=500, help="weights of the model (default 500)")
    parser.add_argument(
        "--large", type=int, default=2300, help="weights of the model beyond 2 GB; 0 leaves it out (default 2300)"
    )
    parser.add_argument(
        "--engines", default="ort,toy", help="which engines; the first one runs the large model (default ort,toy)"
    )
    parser.add_argument("--regions", default="1,8", help="into how many regions the model is cut (default 1,8)")
    parser.add_argument("--process", nargs=3, metavar=("ENGINE", "REGIONS", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process:
        engine, regions, path = arguments.process
        print(json.dumps(measure(engine, int(regions), Path(path))))
        return
    counts = [int(count) for count in arguments.regions.split(",")]
    figures = measure_all(arguments.megabytes, arguments.large, arguments.engines.split(","), counts)
    print_figures("memory", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
