"""Lower precision in a module: examples for an error budget, int8 without a budget, and lower-precision engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xrt.cache import CompileCache
from xrt.engines.contract import registry
from xrt.errors import CalibrationError, OptionError
from xrt.partition.options import Pin
from xrt.passes.quantize.form import QuantizedForm, fit_table, list_quantizable_nodes, prepare_for_quantization
from xrt.placement.engine_list import is_auto
from xrt.precision.budget import PrecisionTerms, read_examples
from xrt.precision.byte_sums import needs_reduced_range
from xrt.precision.lowering import LoweringWithinBudget

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.graph import Function
    from xrt.module.model_source import ModelSource
    from xrt.module.options import ModuleOptions
    from xrt.placement.engine_list import EngineList


def make_lowering(settings: ModuleOptions, source: ModelSource) -> LoweringWithinBudget | None:
    """Create the search for plans within the module's error budget; None without a budget.

    Raises CalibrationError or InputError for unsuitable examples, OptionError without examples.
    """
    budget, inputs = settings.max_error, source.inputs
    if budget is None:
        return None
    if settings.lock is not None and settings.calibrate is None and settings.validate is None:
        return None  # the lock records the measured error; if it does not match, plans stay in full precision
    calibrate = read_examples(settings.calibrate, "calibrate", inputs, budget)
    validate = read_examples(settings.validate, "validate", inputs, budget)
    if not calibrate.items and not validate.items:
        raise OptionError(
            "max_error= is kept by measuring the outputs on examples: pass validate=, a list of batches, and calibrate=, a list "
            "of others, for int8"
        )
    if not validate.items:
        if len(calibrate) < 3:
            raise CalibrationError(
                f"calibrate= has {len(calibrate)} batch{'es' * (len(calibrate) != 1)}, and the error is measured on two or more "
                "that nothing is calibrated on; pass validate= too, or more batches"
            )
        calibrate, validate = calibrate.split()
    if len(validate) < 2 and all(array.shape[:1] in ((), (1,)) for array in validate.items[0].values):
        raise CalibrationError("validate= has one batch, and the interval of an error needs two examples or more; pass more")
    if calibrate.items and calibrate.digest == validate.digest:
        raise CalibrationError("validate= has the batches of calibrate=; the error must be measured on others")
    choice = settings.choice
    return LoweringWithinBudget(
        PrecisionTerms(
            budget,
            validate,
            calibrate,
            choice.names,
            choice.exact_nodes,
            choice.table,
            None if source.is_traced else source.get_declared_function,
            tuple(inputs),
        )
    )


# ---------------------------------------------------------------------- without a budget


def lower_engines(engines: Sequence[GraphCompiler]) -> list[GraphCompiler]:
    """Replace each engine by its int8 variant if it has one."""
    return [one.lower_precision("int8") or one for one in engines]


def keep_nodes_exact(engine: Any, settings: ModuleOptions) -> tuple[list[GraphCompiler], ModuleOptions]:
    """Insert the bf16 or fp16 variant before each engine, and pin the nodes of constraints away from these variants.

    Raises OptionError if no listed engine computes in the precision.
    """
    if is_auto(engine):
        raise OptionError("a constraint on precision with engine='auto' needs an error budget; pass max_error= and validate=")
    if engine is None:
        raise OptionError("a constraint on precision is for an engine that computes in it; name one: engine='openvino'")
    name, listed = settings.choice.names[0], engine if isinstance(engine, list | tuple) else [engine]
    engines = [registry.create(one) for one in listed]
    lowered = {one.spec: one.lower_precision(name) for one in engines}
    if not any(lowered.values()):
        raise OptionError(f"no engine of the list computes in {name} here: {', '.join(lowered)}")
    found: list[GraphCompiler] = []
    for one in engines:
        lower = lowered[one.spec]
        found += [one] if lower is None else [lower, one]
    pins = tuple(
        Pin(pattern.patterns, lower.spec, "name" if pattern.by_name else "operator", forbid=True)
        for pattern in settings.choice.exact_nodes
        for lower in lowered.values()
        if lower is not None
    )
    return found, replace(settings, clustering=replace(settings.clustering, pins=(*settings.clustering.pins, *pins)))


def quantize_as_asked(
    function: Function, original: Function, settings: ModuleOptions, engines: Sequence[GraphCompiler]
) -> Function:
    """Quantize the optimized Function with the calibration table of the settings, which may refer to ``original``.

    Weights have 7 bits if an engine accumulates 8-bit products in 16 bits on this processor.

    Raises CalibrationError for a table of another model, OptionError if nothing can be quantized.
    """
    prepared = prepare_for_quantization(function)
    choice, names = settings.choice, list_quantizable_nodes(prepared)
    kept = {at for at, name in names if any(one.matches(prepared.node(name)) for one in choice.exact_nodes)}
    if len(kept) == len(names):
        raise OptionError(
            f"nothing of model {function.name!r} is quantized: no product or convolution has constant weights of float32"
            if not names
            else f"nothing of model {function.name!r} is quantized: the constraints keep all {len(names)} nodes in float32"
        )
    assert choice.table is not None  # measured by the module if the caller passed no table
    table = fit_table(choice.table, prepared, original)
    return QuantizedForm(table, frozenset(kept), reduce_range=needs_reduced_range(engines)).apply(prepared)


def measure_ranges(declared: Function, settings: ModuleOptions, engines: EngineList) -> CalibrationTable:
    """Calibrate: run the model on the ``calibrate`` batches and record the ranges of its values."""
    from xrt.module.module import XRTModule

    prepared = prepare_for_quantization(declared)

    names = [engine for engine in engines.engines if engine.spec != engines.implicit]
    with XRTModule(prepared, names, cache=CompileCache()) as module:
        return module.calibrate(settings.calibrate)
