"""Quantized forms of a model: static, dynamic or weight-only, with nodes that stay in float32 and balanced channels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.errors import CalibrationError
from xrt.formats.calibration_table import ValueRange
from xrt.formats.placement_file import BalancedValue, FormKind
from xrt.graph import Function, NodePattern, hash_values
from xrt.passes import drop_dead_nodes, infer_shapes
from xrt.passes.quantize import (
    QuantizationOptions,
    find_channel_factors,
    fold_batch_normalization,
    fuse_biases,
    list_balanced_values,
    list_calibrated_values,
    pack_weights,
    quantize,
    quantize_dynamically,
    quantize_weights,
    scale_channels,
    why_not_quantized,
)

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.formats.placement_file import PrecisionRecord


OPTIONS = QuantizationOptions()


@dataclass(frozen=True)
class QuantizedForm:
    """How a model is quantized: the kind of quantization, its parameters, and the nodes that stay in float32."""

    table: CalibrationTable | None = None
    """Calibrated ranges of values; required for the kind ``static``, None for the others."""
    exact_nodes: frozenset[int] = frozenset()
    """Indices of the nodes of the prepared model that stay in float32."""
    kind: FormKind = "static"
    balance: tuple[BalancedValue, ...] = ()
    """The values whose channels are balanced before quantization."""
    reduce_range: bool = False
    """Whether the weights of integer products use 7 bits."""

    def apply(self, prepared: Function) -> Function:
        """Quantize a prepared model; raises CalibrationError for the table of another model."""
        names = [name for index, name in list_quantizable_nodes(prepared) if index not in self.exact_nodes]
        if not names:
            return prepared
        return drop_dead_nodes(infer_shapes(self._rewrite(balance_values(prepared, self.balance), names)))

    def _rewrite(self, function: Function, names: Collection[str]) -> Function:
        if self.kind == "static":
            assert self.table is not None  # a static form always has a table
            return quantize(function, self.table, select_nodes(names, reduce_range=self.reduce_range))
        if self.kind == "dynamic":
            return quantize_dynamically(function, select_nodes(names, reduce_range=self.reduce_range))
        return (pack_weights if self.kind == "packed8" else quantize_weights)(function, select_nodes(names))


def select_nodes(names: Collection[str], **options: Any) -> QuantizationOptions:
    """Create the options that quantize only the nodes with these names."""
    return QuantizationOptions(include=(NodePattern(tuple(sorted(names)), by_name=True),), **options)


def find_balance(prepared: Function, magnitudes: Mapping[str, Any]) -> tuple[BalancedValue, ...]:
    """Compute divisors of channels, rounded to powers of two. ``magnitudes`` has the largest magnitude per channel, by value."""
    divisors = find_channel_factors(prepared, magnitudes)
    exponents = {name: np.rint(np.log2(factors)).astype(int) for name, factors in divisors.items()}
    return tuple(BalancedValue(name, tuple(values.tolist())) for name, values in exponents.items())


def balance_values(prepared: Function, balance: Collection[BalancedValue]) -> Function:
    """Divide the channels of activations by the powers of two in ``balance``, and multiply the weights that read them.

    Raises CalibrationError for values of another model.
    """
    if not balance:
        return prepared
    producers = {name: prepared.producer(name) for name in list_balanced_values(prepared)}
    for item in balance:
        producer = producers.get(item.name)
        if producer is None or prepared.constants[producer.inputs[1]].shape != (len(item.exponents),):
            raise CalibrationError(f"the model has no value {item.name!r} of {len(item.exponents)} channels that can be balanced")
    factors = {item.name: np.exp2(np.array(item.exponents, np.float32)) for item in balance}
    return infer_shapes(scale_channels(prepared, factors))


def fit_balanced_table(
    table: CalibrationTable, prepared: Function, balanced: Function, channels: Mapping[str, tuple[Any, Any]]
) -> CalibrationTable:
    """Add the ranges of a balanced model to the table that was calibrated on the prepared model.

    ``channels`` maps each balanced value to the minima and the maxima of its channels, after division.
    """
    ranges, keys = table.bind(prepared), hash_values(balanced)
    for name in list_calibrated_values(balanced, OPTIONS):
        range_ = ranges.get(name)
        # Values that balancing does not change have the same key, so that the table contains them already.
        if range_ is None or table.find(keys[name]) is not None:
            continue
        # Only balanced values have new ranges: the products that read them compute the same numbers as before.
        if name in channels:
            low, high = (float(pick(extremes)) for pick, extremes in zip((np.min, np.max), channels[name], strict=True))
            range_ = ValueRange(key=range_.key, low=low, high=high, least=low, most=high, batches=range_.batches)
        table = table.add(name, keys[name], range_)
    return table


def prepare_for_quantization(function: Function) -> Function:
    """Fold normalizations and biases into the products and convolutions before them; types must be known."""
    return infer_shapes(fuse_biases(infer_shapes(fold_batch_normalization(function))))


def list_quantizable_nodes(prepared: Function) -> list[tuple[int, str]]:
    """List the index and name of each node that can be quantized."""
    return [(index, node.name) for index, node in enumerate(prepared.nodes) if why_not_quantized(node, prepared, OPTIONS) is None]


def fit_table(table: CalibrationTable, prepared: Function, original: Function) -> CalibrationTable:
    """Add the ranges that a prepared model lacks to a table: those of the original model's values with the same names.

    Preparing keeps the names of values but changes how some are computed, and so their keys. Raises CalibrationError if the
    table has no value of either model.
    """
    needed = [name for name in list_calibrated_values(prepared, OPTIONS) if prepared.defines(name)]
    keys = hash_values(prepared)
    missing = [name for name in needed if table.find(keys[name]) is None]
    if not missing:
        return table
    ranges = {name: range_ for name, key in hash_values(original).items() if (range_ := table.find(key)) is not None}
    inputs = {value.name for value in prepared.inputs}
    if not any(name in ranges for name in missing) and all(name in missing or name in inputs for name in needed):
        raise CalibrationError(
            f"the calibration table has ranges of {len(table)} values, and none is computed in this model: it was made of "
            "another model, or the weights have changed since. Calibrate this one: m.calibrate(batches)"
        )
    for name in missing:
        if name in ranges:
            table = table.add(name, keys[name], ranges[name])
    return table


def make_planned_function(function: Function, record: PrecisionRecord | None) -> Function:
    """Make the Function that a placement with this record plans: the model itself or its quantized form."""
    if record is None or not record.is_quantized or (record.form == "static" and record.table is None):
        return function
    unquantized = frozenset(node.at for node in record.exact_nodes)
    form = QuantizedForm(record.table, unquantized, record.form, record.balance, record.reduce_range)
    return form.apply(prepare_for_quantization(function))
