"""The quantized form of a model, made again from what a placement keeps of it: the ranges, and the nodes that stay in float32."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xrt.errors import CalibrationError
from xrt.graph import Function, NodePattern, hash_values
from xrt.passes import drop_dead_nodes, infer_shapes
from xrt.passes.quantize import (
    QuantizationOptions,
    fold_batch_normalization,
    fuse_biases,
    list_calibrated_values,
    quantize,
    why_not_quantized,
)

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable, ValueRange
    from xrt.formats.precision_record import PrecisionRecord

__all__ = ["QuantizedForm", "fit_table", "list_quantizable_nodes", "make_planned_function", "prepare_for_quantization"]

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


def fit_table(table: CalibrationTable, prepared: Function, original: Function) -> CalibrationTable:
    """Return the table for a prepared model: ranges of the original model are those of the values of the same names.

    Preparing keeps the names of values and changes what computes some of them. Raises CalibrationError where the table has no
    value of either.
    """
    needed = [name for name in list_calibrated_values(prepared, OPTIONS) if prepared.defines(name)]
    keys = hash_values(prepared)
    missing = [name for name in needed if table.find(keys[name]) is None]
    if not missing:
        return table
    known, given = _bind_what_fits(table, original), {value.name for value in prepared.inputs}
    if not any(name in known for name in missing) and all(name in missing or name in given for name in needed):
        raise CalibrationError(
            f"the calibration table has ranges of {len(table)} values, and none is computed in this model: it was made of "
            "another model, or the weights have changed since. Calibrate this one: m.calibrate(batches)"
        )
    for name in missing:
        if name in known:
            table = table.add(name, keys[name], known[name])
    return table


def _bind_what_fits(table: CalibrationTable, function: Function) -> dict[str, ValueRange]:
    return {name: found for name, key in hash_values(function).items() if (found := table.find(key)) is not None}


def make_planned_function(function: Function, record: PrecisionRecord | None) -> Function:
    """Return what a placement with that record plans: the model itself, or its quantized form."""
    if record is None or not record.is_quantized or record.table is None:
        return function
    return QuantizedForm(record.table, frozenset(one.at for one in record.kept)).apply(prepare_for_quantization(function))
