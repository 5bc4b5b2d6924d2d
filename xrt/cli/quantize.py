"""``xrt quantize``: write a model with 8-bit values and weights, or with 8- or 4-bit weights only, as ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from xrt import passes
from xrt.cache import CompileCache
from xrt.cli.inputs import load_with_sizes, read_batches
from xrt.cli.options import TARGET, add_dims, add_engines
from xrt.cli.screen import WorkStatus, print_lines
from xrt.engines import split_specs
from xrt.engines.contract import registry
from xrt.errors import InputError, OptionError, XRTError
from xrt.formats import onnx
from xrt.formats.calibration_table import CalibrationTable
from xrt.graph import Function
from xrt.html.views import size as format_bytes
from xrt.module import XRTModule
from xrt.module.programs import optimize
from xrt.passes.quantize import QuantizationOptions, quantize, quantize_weights, why_not_quantized
from xrt.passes.quantize.form import prepare_for_quantization
from xrt.passes.quantize.packed import why_not_stored
from xrt.placement.result import format_count
from xrt.precision import ErrorBudget, byte_sums
from xrt.precision.collectors import METHODS

_TARGETS = {
    False: "weights of 8 bits: for this processor, x86 with VNNI, and ARM; --portable makes a file for all",
    True: "weights of 7 bits: for all processors",
}
"""The processors that a file is for, by whether its weights have 7 bits."""
_DEFAULT_ORT = "ort{config.session.x64quantprecision=0}"
"""ONNX Runtime as other programs run the file: on x86 without VNNI it accumulates 8-bit products in 16 bits by default."""


@click.command("quantize")
@click.argument("model")
@click.option("-o", "--output", "target", type=TARGET, required=True, help="The quantized model, as ONNX")
@click.option("--data", type=click.Path(exists=True), help="Examples: FILE.npz, FILE.npy, or a folder of such files")
@click.option("--method", default="minmax", show_default=True, type=click.Choice([*METHODS]), help="How ranges are chosen")
@click.option("--weights-only", type=click.Choice(["int8"]), help="Store weights so, and compute in floating point")
@click.option(
    "--include", multiple=True, metavar="PATTERN", help="Quantize these nodes: 'Conv|Gemm', 'name:/layer1/*'; repeatable"
)
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Keep these nodes in floating point; repeatable")
@click.option("--activations", default="uint8", show_default=True, type=click.Choice(["uint8", "int8"]), help="Type of values")
@click.option("--per-tensor", is_flag=True, help="One scale for each weight, not one per channel")
@click.option("--portable", is_flag=True, help="Weights of 7 bits: a file for all processors, x86 without VNNI too")
@click.option("--table", "table_file", type=click.Path(dir_okay=False), help="Ranges from this calibration table")
@click.option("--save-table", type=TARGET, help="Write the calibration table")
@add_engines("Engines that calibrate and measure, first choice first: tvm,ort")
@add_dims
def quantize_command(model: str, target: Path, table_file: str | None, save_table: Path | None, **params: Any) -> None:
    """Quantize MODEL, an ONNX file or a shipped model, and write it as ONNX that any runtime reads.

    Products and convolutions are computed in 8 bits, with ranges that are measured on the examples. The error of the outputs is
    measured on the same examples.
    """
    options, is_weight_only = _make_options(params), params["weights_only"] is not None
    function = load_with_sizes(model, params)
    if any("quantize" in node.op.lower() or "QLinear" in node.op for node in function.nodes):
        raise OptionError(f"the model {function.name!r} is quantized already: it has QuantizeLinear or operators like it")
    # Fold constants, and merge normalizations and biases into the operators before them.
    function = prepare_for_quantization(optimize(passes.infer_shapes(function), fold=True))
    batches = read_batches(Path(params["data"]), function) if params["data"] else []
    engines = params["engine"] and split_specs(params["engine"])
    with WorkStatus("quantizing") as status:
        # A table from an earlier run replaces calibration; with --weights-only no ranges of values are needed.
        table = CalibrationTable.load(table_file) if table_file is not None and not is_weight_only else None
        if table is None and not is_weight_only:
            if not batches:
                raise InputError("ranges are measured on examples: pass --data, a --table, or --weights-only for weights alone")
            status.update(f"calibrating on {len(batches)} batches")
            with XRTModule(function, engines, cache=CompileCache()) as module:
                table = module.calibrate(batches, params["method"])
        if save_table and table is not None:
            table.save(save_table)
        why_not: Callable[..., str | None] = why_not_stored if is_weight_only else why_not_quantized
        count = sum(why_not(node, function, options) is None for node in function.nodes)
        if not count:
            raise OptionError("nothing of the model is quantized: no node of the patterns has constant weights of float32")
        quantized = quantize_weights(function, options) if table is None else quantize(function, table, options)
        if batches:
            status.update("measuring the error")
            expected, actual = (_run(variant, engines, batches) for variant in (function, quantized))
            error = ErrorBudget(1.0).measure_error(expected, actual, batches).error
        onnx.save(quantized, target)
    print_lines(f"quantized {format_count(count, 'node')} with weights")
    if batches:
        where = "on the examples" if is_weight_only else "on the examples that were calibrated on"
        print_lines(f"largest relative error of an output: {error:.3%}, {where}")
    if not is_weight_only:
        print_lines(_TARGETS[options.reduce_range])
    print_lines(f"{target}: {format_bytes(target.stat().st_size)}")


def _make_options(params: Mapping[str, Any]) -> QuantizationOptions:
    """Options of the pass; without ``--portable``, a trial of ONNX Runtime's kernels decides between 7 and 8 bits."""
    patterns: dict[str, Any] = {"include": params["include"]} if params["include"] else {}
    # Sums of 8-bit products saturate on x86 without VNNI; weights of 7 bits cannot. Weights alone are not summed as bytes.
    needs_7_bits = not params["weights_only"]
    if needs_7_bits and not params["portable"]:
        with suppress(XRTError):  # ONNX Runtime is not installed: the file is for unknown processors
            needs_7_bits = not byte_sums.sums_bytes_exactly(registry.create(_DEFAULT_ORT))
    return QuantizationOptions(
        **patterns,
        exclude=params["exclude"],
        activations=params["activations"],
        per_channel=not params["per_tensor"],
        reduce_range=needs_7_bits,
    )


def _run(function: Function, engines: Sequence[str] | None, batches: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """The outputs for each batch; compiles are not cached."""
    with XRTModule(function, engines, cache=CompileCache()) as module:
        results = [module(**batch) for batch in batches]
    return [result if isinstance(result, tuple) else (result,) for result in results]
