"""The quantized form of a model, made again from what a placement keeps of it: the ranges, and the nodes that stay in float32."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xrt.graph import Function, NodePattern
from xrt.passes import drop_dead_nodes, infer_shapes
from xrt.passes.quantize import QuantizationOptions, fold_batch_normalization, fuse_biases, quantize, why_not_quantized

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.formats.precision_record import PrecisionRecord

__all__ = ["QuantizedForm", "list_quantizable_nodes", "make_planned_function", "prepare_for_quantization"]

OPTIONS = QuantizationOptions()


@dataclass(frozen=True)
class QuantizedForm:
    """How a model is quantized."""

    table: CalibrationTable
    kept: frozenset[int] = frozenset()
    """Positions of nodes of the prepared model that stay in float32."""

    def apply(self, prepared: Function) -> Function:
        """Return the quantized form of a prepared model; raises CalibrationError for a table of another model."""
        names = [name for at, name in list_quantizable_nodes(prepared) if at not in self.kept]
        if not names:
            return prepared
        return drop_dead_nodes(infer_shapes(quantize(prepared, self.table, select_nodes(names))))


def select_nodes(names: Collection[str]) -> QuantizationOptions:
    """Return the options that quantize just these nodes."""
    return QuantizationOptions(include=(NodePattern(tuple(sorted(names)), by_name=True),))


def prepare_for_quantization(function: Function) -> Function:
    """Return the model with normalizations and biases in the products and convolutions before them; its types must be known."""
    return infer_shapes(fuse_biases(infer_shapes(fold_batch_normalization(function))))


def list_quantizable_nodes(prepared: Function) -> list[tuple[int, str]]:
    """Return position and name of each node that can be quantized."""
    return [(at, node.name) for at, node in enumerate(prepared.nodes) if why_not_quantized(node, prepared, OPTIONS) is None]


def make_planned_function(function: Function, record: PrecisionRecord | None) -> Function:
    """Return what a placement with that record plans: the model itself, or its quantized form."""
    if record is None or not record.is_quantized or record.table is None:
        return function
    return QuantizedForm(record.table, frozenset(one.at for one in record.kept)).apply(prepare_for_quantization(function))
