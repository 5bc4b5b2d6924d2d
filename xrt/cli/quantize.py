"""``xrt quantize``: a model with values and weights of bytes, or weights alone, as ONNX; within an error budget, if given."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from xrt import passes
from xrt.cache import CompileCache
from xrt.calibration import METHODS
from xrt.calibration.error_search import QuantizationResult, measure_error, quantize_within
from xrt.cli.inputs import read_batches
from xrt.cli.options import add_all, add_dims, add_engines, check_writable, derive, load_with_sizes
from xrt.cli.screen import WorkStatus, complain, human_bytes, out, show_table
from xrt.engines import split_specs
from xrt.engines.contract import registry
from xrt.errors import CalibrationError, InputError, OptionError, XRTError
from xrt.formats import onnx
from xrt.formats.calibration_table import CalibrationTable
from xrt.graph import Function, NodePattern
from xrt.module import ModuleOptions, XRTModule
from xrt.module.specialization import optimize
from xrt.passes.quantize import (
    QuantizationOptions,
    balance_channels,
    list_balanced_values,
    quantize,
    quantize_weights,
    why_not_quantized,
)
from xrt.passes.quantize.form import prepare_for_quantization
from xrt.passes.quantize.packed import why_not_stored
from xrt.placement.report import format_error, list_pareto_plans
from xrt.precision import byte_sums
from xrt.precision.budget import ErrorBudget

if TYPE_CHECKING:
    from xrt.formats.placement_file import PrecisionRecord

__all__ = ["add_precision_options", "command", "parse_error", "read_precision_keywords", "show_pareto"]


def parse_error(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Return a share from a text such as ``1%`` or ``0.01``; raises OptionError for another form."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(%|)", text.strip())
    if match is None or not 0 < float(match[1]) < math.inf:
        raise OptionError(f"--max-error takes a share such as 1% or 0.01; got {text!r}")
    return float(match[1]) / (100 if match[2] else 1)


add_precision_options = add_all(
    derive(ModuleOptions, "max_error", callback=parse_error, metavar="SHARE", example="1%, 0.01"),
    click.option(
        "--measure",
        type=click.Choice(["relative", "cosine", "top1"]),
        default="relative",
        show_default=True,
        help="Measure of that error: of the norm, of the angle, or the share of rows with another largest element",
    ),
    derive(ModuleOptions, "calibrate", kind="examples"),
    derive(ModuleOptions, "validate", kind="examples", shown="a fifth of --calibrate"),
)
"""Adds the options of an error budget: ``max_error``, ``measure``, ``calibrate`` and ``validate``."""


def read_precision_keywords(params: Mapping[str, Any], function: Function) -> dict[str, Any]:
    """Return XRTModule's keywords from what `add_precision_options` collected; empty without a budget.

    Raises OptionError for examples without a budget.
    """
    if params.get("max_error") is None:
        for name in ("calibrate", "validate"):
            if params.get(name) is not None:
                raise OptionError(f"--{name} has examples for an error budget; pass --max-error too, such as --max-error 1%")
        return {}
    keywords: dict[str, Any] = {"max_error": ErrorBudget(params["max_error"], params["measure"])}
    for name in ("calibrate", "validate"):
        if params[name] is not None:
            keywords[name] = read_batches(Path(params[name]), function)
    if len(keywords) == 1:
        raise OptionError("--max-error is kept by measuring the outputs on examples; pass --validate, and --calibrate for int8")
    return keywords


# ---------------------------------------------------------------------- error against time


def show_pareto(record: PrecisionRecord) -> None:
    """Print error and time of the plans, with a bar for the time; the best of each error are marked."""
    rows = list_pareto_plans(record)
    slowest = max((one.seconds or 0.0 for one, _ in rows), default=0.0) or 1.0
    cells = [
        (
            "*" if is_best else "",
            one.precision,
            one.plan,
            str(one.kept or ""),
            format_error(one.error, record.measure) if one.precision != "fp32" else "0",
            f"{1e3 * (one.seconds or 0.0):.4g}",
            "#" * max(1, round(24 * (one.seconds or 0.0) / slowest)),
        )
        for one, is_best in rows
    ]
    show_table(("best", "precision", "plan", "in fp32", "error", "ms", "time"), cells, numbers=("in fp32", "error", "ms"))
    over = [one for one in record.plans if one.outcome == "over"]
    for one in sorted(over, key=lambda one: one.error or math.inf):
        error = format_error(one.high if one.high is not None else one.error, record.measure)
        out.print(f"over the budget, not timed: {one.precision} on {one.plan}, up to {error}", markup=False)


Batches = Sequence[Mapping[str, Any]]
_TARGETS = {
    False: "weights of 8 bits: for this processor, x86 with VNNI, and ARM; --portable makes a file for all",
    True: "weights of 7 bits: for all processors",
}
"""For which processors a file is, by whether its weights have 7 bits."""


@click.command("quantize")
@click.argument("model")
@click.option("-o", "--output", "target", type=click.Path(dir_okay=False), required=True, help="The quantized model, as ONNX")
@click.option("--data", type=click.Path(exists=True), help="Examples: FILE.npz, FILE.npy, or a folder of such files")
@click.option("--method", default="minmax", show_default=True, type=click.Choice([*METHODS]), help="How ranges are chosen")
@click.option("--weights-only", type=click.Choice(["int8", "int4"]), help="Store weights so, and compute in floating point")
@derive(ModuleOptions, "max_error", callback=parse_error, metavar="SHARE", example="1%, 0.01")
@click.option(
    "--include", multiple=True, metavar="PATTERN", help="Quantize these nodes: 'Conv|Gemm', 'name:/layer1/*'; repeatable"
)
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Keep these nodes in floating point; repeatable")
@click.option("--activations", default="uint8", show_default=True, type=click.Choice(["uint8", "int8"]), help="Type of values")
@click.option("--balance", is_flag=True, help="Move large channels of normalizations into the weights behind them")
@click.option("--per-tensor", is_flag=True, help="One scale for each weight, not one per channel")
@click.option("--portable", is_flag=True, help="Weights of 7 bits: a file for all processors, x86 without VNNI too")
@click.option("--block-size", default=32, show_default=True, type=int, help="With int4: rows that share a scale")
@click.option("--table", "table_file", type=click.Path(dir_okay=False), help="Ranges from this calibration table")
@click.option("--save-table", type=click.Path(dir_okay=False), help="Write the calibration table")
@add_engines("Engines that calibrate and measure, first choice first: tvm,ort")
@add_dims
def command(
    model: str, target: str, table_file: str | None, save_table: str | None, max_error: float | None, **params: Any
) -> int:
    """Quantize MODEL, an ONNX file or a shipped model, and write it as ONNX that any runtime reads.

    Products and convolutions are computed with bytes by ranges that are measured on the examples. --max-error measures the
    outputs on the last fifth of the examples, which nothing is calibrated on, and keeps the nodes that cost most in floating
    point until the error is within the share; exit code 1, and no file, where that cannot be.
    """
    for path in filter(None, (target, save_table)):
        check_writable(Path(path))
    options = _make_options(params)
    function = _prepare(load_with_sizes(model, params))
    batches = read_batches(Path(params["data"]), function) if params["data"] else []
    job = _Job(
        function,
        options,
        params["weights_only"] is not None,
        params["engine"] and split_specs(params["engine"]),
        WorkStatus("quantizing"),
    )
    held_out = _count_held_out(batches, max_error)
    with job.status:
        if params["balance"]:
            job = job.balance(batches[: len(batches) - held_out])
        table = None if job.is_weight_only else job.make_table(batches[: len(batches) - held_out], params["method"], table_file)
        if save_table and table is not None:
            table.save(save_table)
        try:
            result = job.quantize(table, batches, held_out, max_error)
        except CalibrationError as error:
            if max_error is None:
                raise
            complain("error", str(error))
            return 1
        onnx.save(result.function, target)
    job.report(result, is_measured=bool(batches), held_out=held_out)
    out.print(f"{target}: {human_bytes(Path(target).stat().st_size)}", markup=False)
    return 0


def _make_options(params: Mapping[str, Any]) -> QuantizationOptions:
    narrow = params["weights_only"] == "int4"
    chosen: dict[str, Any] = {"include": params["include"]} if params["include"] else {}
    return QuantizationOptions(
        **chosen,
        exclude=params["exclude"],
        activations=params["activations"],
        weights=params["weights_only"] or "int8",
        symmetric_weights=not narrow,
        per_channel=not params["per_tensor"],
        reduce_range=not params["weights_only"] and (params["portable"] or not _sums_bytes_exactly()),
        block_size=params["block_size"],
    )


PLAIN = "ort{config.session.x64quantprecision=0}"
"""ONNX Runtime as other programs run the file: by default it adds products of bytes in 16 bits on x86 without VNNI."""


def _sums_bytes_exactly() -> bool:
    """Whether a session of ONNX Runtime with default options computes right on this processor with weights of 8 bits."""
    try:
        return byte_sums.sums_bytes_exactly(registry.create(PLAIN))
    except XRTError:  # not installed: the file is for processors that are not known
        return False


def _prepare(function: Function) -> Function:
    """Return the model as it is quantized: constants folded, normalizations and biases in the operators before them."""
    if any("quantize" in node.op.lower() or "QLinear" in node.op for node in function.nodes):
        raise OptionError(f"the model {function.name!r} is quantized already: it has QuantizeLinear or operators like it")
    return prepare_for_quantization(optimize(passes.infer_shapes(function), fold=True))


def _count_held_out(batches: Batches, max_error: float | None) -> int:
    """Return how many of the last batches the error is measured on; raises InputError where there are too few."""
    if max_error is None:
        return 0
    if len(batches) < 2:
        raise InputError(
            "--max-error measures on examples that nothing is calibrated on, and there "
            f"{'is 1 batch' if batches else 'are none'}; pass --data with two batches or more"
        )
    return max(1, len(batches) // 5)


@dataclass(frozen=True, slots=True)
class _Job:
    """One model to quantize."""

    function: Function
    options: QuantizationOptions
    is_weight_only: bool
    engines: Sequence[str] | None
    status: WorkStatus

    def make_table(self, batches: Batches, method: str, file: str | None) -> CalibrationTable:
        """Return the ranges: read, or measured on the batches."""
        if file is not None:
            return CalibrationTable.load(file)
        if not batches:
            raise InputError("ranges are measured on examples: pass --data, a --table, or --weights-only for weights alone")
        self.status.update(f"calibrating on {len(batches)} batches")
        with self.open(self.function) as module:
            return module.calibrate(batches, method)

    def balance(self, batches: Batches) -> _Job:
        """Return the job with channels balanced by their magnitudes in the batches."""
        names = list_balanced_values(self.function)
        if not batches or not names:
            raise InputError(
                "--balance needs --data, to measure channels"
                if names
                else "--balance: no LayerNormalization is read by products alone"
            )
        largest: dict[str, Any] = {}
        with self.open(self.function) as module:
            for batch in batches:
                for name, array in module(**batch, fetch=names).items():
                    magnitudes = np.abs(array).reshape(-1, array.shape[-1]).max(axis=0)
                    largest[name] = np.maximum(magnitudes, largest.get(name, magnitudes))
        return replace(self, function=passes.infer_shapes(balance_channels(self.function, largest)))

    def open(self, function: Function) -> XRTModule:
        return XRTModule(function, self.engines, cache=CompileCache())  # what is tried is not kept

    def list_names(self) -> tuple[str, ...]:
        """Return the nodes that can be quantized."""
        why_not: Callable[..., str | None] = why_not_stored if self.is_weight_only else why_not_quantized
        names = tuple(node.name for node in self.function.nodes if why_not(node, self.function, self.options) is None)
        if not names:
            raise OptionError("nothing of the model is quantized: no node of the patterns has constant weights of float32")
        return names

    def run(self, function: Function, batches: Batches) -> list[tuple[Any, ...]]:
        with self.open(function) as module:
            results = [module(**batch) for batch in batches]
        return [result if isinstance(result, tuple) else (result,) for result in results]

    def quantize_nodes(self, table: CalibrationTable | None, names: frozenset[str]) -> Function:
        if not names:
            return self.function
        options = replace(self.options, include=(NodePattern(tuple(sorted(names)), by_name=True),), exclude=())
        return quantize_weights(self.function, options) if table is None else quantize(self.function, table, options)

    def quantize(
        self, table: CalibrationTable | None, batches: Batches, held_out: int, budget: float | None
    ) -> QuantizationResult:
        """Return the quantized model, within the budget if there is one, with its error on the held-out batches, or on all."""
        names = self.list_names()
        if budget is None:
            quantized = self.quantize_nodes(table, frozenset(names))
            self.status.update("measuring the error")
            error = measure_error(self.run(self.function, batches), self.run(quantized, batches)) if batches else math.nan
            return QuantizationResult(quantized, error, names, (), 2)
        return quantize_within(
            self.function,
            names,
            budget,
            quantize=lambda chosen: self.quantize_nodes(table, chosen),
            run=self.run,
            batches=batches[:-held_out],
            held_out=batches[-held_out:],
            progress=self.status.update,
        )

    def report(self, result: QuantizationResult, *, is_measured: bool, held_out: int) -> None:
        """Print what was quantized, the error, and the nodes that stay with the error of each."""
        count = len(result.quantized) + len(result.kept)
        out.print(f"quantized {len(result.quantized)} of {count} nodes with weights", markup=False)
        where = f"on {held_out} held-out batches" if held_out else "on the examples that were calibrated on"
        if is_measured:
            where = "on the examples" if self.is_weight_only and not held_out else where
            out.print(f"largest relative error of an output: {result.error:.3%}, {where}", markup=False)
        if not self.is_weight_only:
            out.print(_TARGETS[self.options.reduce_range], markup=False)
        if result.kept:
            operators = {node.name: node.op for node in self.function.nodes}
            rows = [(one.name, operators[one.name], f"{one.error:.3%}") for one in result.kept]
            out.print("kept in floating point, each with the error of quantizing it alone:", markup=False)
            show_table(("node", "operator", "error"), rows, numbers=("error",), whole=("operator",))
