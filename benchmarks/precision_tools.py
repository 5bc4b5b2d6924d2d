"""Quantization by ONNX Runtime's and NNCF's tools, and sessions of their runtimes, for `benchmarks/precision.py`.

A tool runs in a process of its own. It reads model and examples from a folder, and writes its model there:

    python benchmarks/precision_tools.py TOOL FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from output import ChildFailed, limit_pools, make_calibration_reader, open_session, run_python

Example = Mapping[str, Any]
Call = Callable[[Example], list[Any]]

TOOL_TIMEOUT_SECONDS = 3600.0
"""Time limit of a tool in seconds: NNCF's accuracy control validates the model once per group of nodes."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The file that a tool wrote."""

    path: Path
    seconds: float
    """Without imports and reading the model."""


class ToolFailed(Exception):
    """A tool that is missing, raised an error or took too long."""


def measure_accuracy(outputs: Sequence[Any], examples: Sequence[Example]) -> float:
    """The share of items whose label has the largest score."""
    hits = [scores.argmax(-1) == example["label"] for scores, example in zip(outputs, examples, strict=True)]
    return float(np.concatenate(hits).mean())


# ---------------------------------------------------------------------- from the benchmark


def write_examples(folder: Path, purpose: str, examples: Sequence[Example]) -> None:
    """Write examples for calibration or validation."""
    np.savez(
        folder / f"{purpose}.npz",
        **{f"{at}/{name}": value for at, example in enumerate(examples) for name, value in example.items()},
    )


def run_tool(tool: str, folder: Path, threads: int, **options: Any) -> ToolResult:
    """Run a tool on ``model.onnx`` and the examples of a folder; raises ToolFailed."""
    if tool.startswith("nncf") and find_spec("nncf") is None:
        raise ToolFailed("NNCF is not installed: pip install '.[benchmarks]'")
    (folder / "options.json").write_text(json.dumps(options), encoding="utf-8")
    try:
        result = run_python(
            [__file__, tool, str(folder)], {**limit_pools(threads), "ORT_DISABLE_TELEMETRY": "1"}, TOOL_TIMEOUT_SECONDS
        )
    except ChildFailed as error:
        raise ToolFailed(str(error).partition(": ")[2] or str(error)) from error
    return ToolResult(folder / result["file"], result["seconds"])


def open_onnxruntime(path: Path, threads: int) -> Call:
    """Open a model in ONNX Runtime with its defaults; return its call."""
    session = open_session(path, threads)
    names = {value.name for value in session.get_inputs()}
    return lambda example: session.run(None, {name: example[name] for name in names})


def open_openvino(path: Path, threads: int, precision: str | None = "f32") -> Call:
    """Open a model in OpenVINO with unpinned threads; return its call. ``precision`` None is the library's default hint."""
    from xrt.engines.openvino.library import get_core  # imports the library without its telemetry

    # Pinned threads wait for other work on their core. XRT does not pin either.
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False}
    settings |= {"INFERENCE_PRECISION_HINT": precision} if precision else {}
    compiled = get_core().compile_model(str(path), "CPU", settings)
    request, names = compiled.create_infer_request(), [port.get_any_name() for port in compiled.inputs]

    def call(example: Example) -> list[Any]:
        request.infer({name: example[name] for name in names}, share_inputs=True, share_outputs=True)
        return [tensor.data for tensor in request.output_tensors]

    return call


# ---------------------------------------------------------------------- in the tool's process


def _read_examples(folder: Path, purpose: str) -> list[dict[str, Any]]:
    examples: dict[int, dict[str, Any]] = {}
    with np.load(folder / f"{purpose}.npz") as arrays:
        for key in arrays.files:
            at, _, name = key.partition("/")
            examples.setdefault(int(at), {})[name] = arrays[key]
    return [examples[at] for at in sorted(examples)]


def _list_inputs(examples: Sequence[Example]) -> list[dict[str, Any]]:
    """The examples without the labels."""
    return [{name: value for name, value in example.items() if name != "label"} for example in examples]


def quantize_by_onnxruntime(folder: Path, options: Mapping[str, Any]) -> tuple[str, float]:
    """Quantize statically as ONNX Runtime's documentation recommends: preprocessed, uint8 by int8, weights per channel."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    reader = make_calibration_reader(_list_inputs(_read_examples(folder, "calibrate")))
    began = time.perf_counter()
    quant_pre_process(str(folder / "model.onnx"), str(folder / "prepared.onnx"), skip_symbolic_shape=True)
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    target = folder / "onnxruntime.onnx"
    quantize_static(folder / "prepared.onnx", target, reader, quant_format=QuantFormat.QDQ, per_channel=True, **types)
    return target.name, time.perf_counter() - began


def quantize_by_nncf(folder: Path, options: Mapping[str, Any]) -> tuple[str, float]:
    """Quantize an ONNX model statically by NNCF."""
    nncf = _import_nncf()
    import onnx

    model = onnx.load(folder / "model.onnx")
    examples = _list_inputs(_read_examples(folder, "calibrate"))
    began = time.perf_counter()
    quantized = nncf.quantize(model, nncf.Dataset(examples), model_type=_choose_type(nncf, options))
    seconds = time.perf_counter() - began
    onnx.save(quantized, folder / "nncf.onnx")
    return "nncf.onnx", seconds


def control_accuracy_by_nncf(folder: Path, options: Mapping[str, Any]) -> tuple[str, float]:
    """Quantize a model of OpenVINO by NNCF until its accuracy is within ``drop`` of the original's."""
    nncf = _import_nncf()
    import openvino

    model = openvino.Core().read_model(folder / "model.onnx")
    names = [port.get_any_name() for port in model.inputs]
    calibrate, validate = (_read_examples(folder, purpose) for purpose in ("calibrate", "validate"))

    def pick_inputs(example: Example) -> dict[str, Any]:
        return {name: example[name] for name in names}

    def validate_accuracy(compiled: Any, examples: Iterator[Example]) -> tuple[float, list[float]]:
        accuracies = [measure_accuracy([compiled(pick_inputs(example))[0]], [example]) for example in examples]
        return float(np.mean(accuracies)), accuracies

    data = nncf.Dataset(calibrate, pick_inputs), nncf.Dataset(validate)
    began = time.perf_counter()
    quantized = nncf.quantize_with_accuracy_control(
        model, *data, validate_accuracy, max_drop=options["drop"], model_type=_choose_type(nncf, options)
    )
    seconds = time.perf_counter() - began
    openvino.save_model(quantized, folder / "nncf.xml", compress_to_fp16=False)
    return "nncf.xml", seconds


def _import_nncf() -> Any:
    """Import NNCF without its telemetry module, which it replaces by a stub."""
    modules: dict[str, Any] = sys.modules
    modules["openvino_telemetry"] = None
    import nncf

    return nncf


def _choose_type(nncf: Any, options: Mapping[str, Any]) -> Any:
    return nncf.ModelType.TRANSFORMER if options.get("is_transformer") else None


TOOLS: Mapping[str, Callable[[Path, Mapping[str, Any]], tuple[str, float]]] = {
    "onnxruntime": quantize_by_onnxruntime,
    "nncf": quantize_by_nncf,
    "nncf accuracy": control_accuracy_by_nncf,
}


def main() -> None:
    """Run one tool; print its file and its seconds."""
    tool, folder = sys.argv[1], Path(sys.argv[2])
    options = json.loads((folder / "options.json").read_text(encoding="utf-8"))
    name, seconds = TOOLS[tool](folder, options)
    print(json.dumps({"file": name, "seconds": seconds}))


if __name__ == "__main__":
    main()
