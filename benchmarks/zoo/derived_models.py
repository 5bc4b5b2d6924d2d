"""Exported models in half precision and quantized, by ONNX Runtime's tools. The expected results are ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.output import make_calibration_reader
from benchmarks.zoo.model import FOLDER, CreatedModel, Export, load_case


def to_half(source: Path, target: Path, calls: Any) -> None:
    """Convert to float16, inputs and outputs kept in float32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def quantize_weights(source: Path, target: Path, calls: Any) -> None:
    """Quantize weights to int8, activations at run time."""
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(source, target)


def quantize_all(source: Path, target: Path, calls: Any, form: str = "QDQ") -> None:
    """Quantize weights and activations to int8, calibrated on the model's own inputs."""
    from onnxruntime.quantization import QuantFormat, quantize_static

    quantize_static(source, target, make_calibration_reader(calls), quant_format=QuantFormat[form])


def quantize_to_four_bits(source: Path, target: Path, calls: Any) -> None:
    """Quantize weights of products to blocks of four bits (com.microsoft.MatMulNBits)."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=16, is_symmetric=True)
    quantizer.process()
    onnx.save(quantizer.model.model, target)


def optimize(source: Path, target: Path, calls: Any) -> None:
    """Fuse as ONNX Runtime does at its extended level (com.microsoft operators)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


DERIVED: tuple[tuple[str, str, Callable[[Path, Path, Any], None], float], ...] = (
    ("half_vit", "vit", to_half, 2e-2),
    ("half_bert", "bert", to_half, 2e-2),
    ("half_resnet", "resnet", to_half, 2e-2),
    ("int8_weights_bert", "bert", quantize_weights, 3e-2),
    ("int8_weights_gpt2", "gpt2", quantize_weights, 3e-2),
    ("qdq_resnet", "resnet", quantize_all, 5e-2),
    ("qdq_bert", "bert", quantize_all, 5e-2),
    ("qoperator_resnet", "resnet", partial(quantize_all, form="QOperator"), 5e-2),
    ("four_bits_qwen2", "qwen2", quantize_to_four_bits, 3e-2),
    ("fused_bert", "bert", optimize, 1e-3),
)


def list_exports() -> Iterator[Export]:
    """Yield every derived model; its source must have been exported."""
    for name, source, convert, tolerance in DERIVED:
        yield Export(name, "reduced precision" if name != "fused_bert" else "fused", partial(_make, source, convert), tolerance)


def _make(source: str, convert: Callable[[Path, Path, Any], None]) -> CreatedModel:
    case = load_case(FOLDER / source)
    calls = [{name: np.asarray(value) for name, value in call.items()} for call in case.calls]
    return CreatedModel(lambda target: convert(case.path, target, calls), calls, [])
