"""Quantize a prepared model as a `QuantizedForm` describes: kind of quantization, ranges, float32 nodes, balanced channels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.errors import CalibrationError
from xrt.formats.calibration_table import ValueRange
from xrt.formats.placement_file import BalancedValue
from xrt.graph import Function, NodePattern, hash_values
from xrt.passes import drop_dead_nodes, infer_shapes
from xrt.passes.quantize.balancing import find_channel_factors, list_balanced_values, scale_channels
from xrt.passes.quantize.candidates import QuantizationOptions, list_calibrated_values, why_not_quantized
from xrt.passes.quantize.packed import pack_weights, quantize_dynamically, quantize_weights
from xrt.passes.quantize.static import fold_batch_normalization, fuse_biases, quantize

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.formats.placement_file import PrecisionRecord, QuantizedForm


DEFAULT_OPTIONS = QuantizationOptions()


def quantize_form(prepared: Function, form: QuantizedForm) -> Function:
    """Quantize the result of `prepare_for_quantization`; raises CalibrationError if the table is of another model."""
    names = [name for index, name in list_quantizable_nodes(prepared) if index not in form.exact_nodes]
    if not names:
        return prepared
    include = (NodePattern(tuple(sorted(names)), by_name=True),)
    # Dequantized weights cannot overflow, so they use all 8 bits.
    reduce_range = form.reduce_range and form.kind in ("static", "dynamic")
    options = QuantizationOptions(include=include, reduce_range=reduce_range)
    balanced = balance_values(prepared, form.balance)
    if form.kind == "static":
        assert form.table is not None  # a static form always has a table
        quantized = quantize(balanced, form.table, options)
    else:
        quantized = _REWRITES[form.kind](balanced, options)
    return drop_dead_nodes(infer_shapes(quantized))


_REWRITES = {"dynamic": quantize_dynamically, "packed8": pack_weights, "stored8": quantize_weights}


def find_balance(prepared: Function, magnitudes: Mapping[str, Any]) -> tuple[BalancedValue, ...]:
    """Compute the divisors of channels as in `find_channel_factors`, rounded to powers of two."""
    factors = find_channel_factors(prepared, magnitudes)
    exponents = {name: np.rint(np.log2(array)).astype(int) for name, array in factors.items()}
    return tuple(BalancedValue(name, tuple(values.tolist())) for name, values in exponents.items())


def balance_values(prepared: Function, balance: Collection[BalancedValue]) -> Function:
    """Divide the channels of activations by powers of two, and multiply the weights that read the channels.

    Raises CalibrationError if ``balance`` is of another model.
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
    """Add the ranges of values of the balanced model to a table that was calibrated on the prepared model.

    ``channels`` maps each balanced value to (minima, maxima) of its channels, after division.
    """
    ranges, keys = table.bind(prepared), hash_values(balanced)
    for name in list_calibrated_values(balanced, DEFAULT_OPTIONS):
        range_ = ranges.get(name)
        # Either no range is known, or the value has the same key in both models and so has a range in the table already.
        if range_ is None or table.find(keys[name]) is not None:
            continue
        if name in channels:
            # The value was divided by powers of two per channel, so its range is that of the divided channels.
            minima, maxima = channels[name]
            low, high = float(np.min(minima)), float(np.max(maxima))
            range_ = ValueRange(key=range_.key, low=low, high=high, least=low, most=high, batches=range_.batches)
        # Other values with a new key, such as products that read balanced values, compute the same numbers: keep the range.
        table = table.add(name, keys[name], range_)
    return table


def prepare_for_quantization(function: Function) -> Function:
    """Fold normalizations and biases into the convolutions and products before them. Infer types first."""
    return infer_shapes(fuse_biases(infer_shapes(fold_batch_normalization(function))))


def list_quantizable_nodes(prepared: Function) -> list[tuple[int, str]]:
    nodes = enumerate(prepared.nodes)
    return [(index, node.name) for index, node in nodes if why_not_quantized(node, prepared, DEFAULT_OPTIONS) is None]


def fit_table(table: CalibrationTable, prepared: Function, original: Function) -> CalibrationTable:
    """Add ranges to a table that was calibrated on the original model, so that it also applies to the prepared model.

    Preparing keeps the names of values, but changes how some are computed, and so their keys. A value without a range gets the
    range of the original model's value with the same name. Raises CalibrationError if the table has no value of either model.
    """
    needed = [name for name in list_calibrated_values(prepared, DEFAULT_OPTIONS) if prepared.defines(name)]
    keys = hash_values(prepared)
    missing = [name for name in needed if table.find(keys[name]) is None]
    if not missing:
        return table
    ranges = {name: range_ for name, key in hash_values(original).items() if (range_ := table.find(key)) is not None}
    # An input has the same key in every model, so it does not show that the table belongs to this model.
    inputs = {value.name for value in prepared.inputs}
    computed = [name for name in needed if name not in inputs]
    if not any(name in ranges for name in missing) and all(name in missing for name in computed):
        raise CalibrationError(
            f"the calibration table has ranges of {len(table)} values, and none is computed in this model: it was made of "
            "another model, or the weights have changed since. Calibrate this one: m.calibrate(batches)"
        )
    for name in missing:
        if name in ranges:
            table = table.add(name, keys[name], ranges[name])
    return table


def make_planned_function(function: Function, record: PrecisionRecord | None) -> Function:
    """Make the Function that is partitioned for a placement with this record: the model or its quantized form."""
    if record is None or record.form is None:
        return function
    return quantize_form(prepare_for_quantization(function), record.form)
