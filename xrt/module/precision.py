"""Reduced precision in a module: search within an error budget, quantization to int8, and calibration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.cache import CompileCache
from xrt.errors import CalibrationError, OptionError
from xrt.formats.placement_file import QuantizedForm
from xrt.graph import Function, hash_values
from xrt.passes import infer_shapes
from xrt.passes.quantize import list_calibrated_values
from xrt.passes.quantize.form import (
    DEFAULT_OPTIONS,
    fit_table,
    list_quantizable_nodes,
    prepare_for_quantization,
    quantize_form,
)
from xrt.placement.engine_list import EngineList
from xrt.precision.budget import ErrorBudget, PrecisionOptions, iter_examples, read_examples
from xrt.precision.byte_sums import needs_reduced_range
from xrt.precision.collectors import Observer, read_values
from xrt.precision.placement import ReducedPrecisionSearch

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.module.model_source import ModelSource
    from xrt.module.module import XRTModule
    from xrt.module.options import ModuleOptions


def make_precision_reducer(budget: ErrorBudget, settings: ModuleOptions, source: ModelSource) -> ReducedPrecisionSearch | None:
    """Create the search for plans within the module's error budget; None if the plan comes from a lock.

    Raises CalibrationError or InputError for unsuitable examples, OptionError without examples.
    """
    inputs, choice = source.inputs, settings.choice
    if settings.lock is not None and settings.calibrate is None and settings.validate is None:
        return None  # the lockfile has a measured error; if it does not match, plans stay in float32
    calibrate = read_examples(settings.calibrate, "calibrate", inputs, budget)
    validate = read_examples(settings.validate, "validate", inputs, budget)
    if not calibrate.items and not validate.items:
        raise OptionError(
            "max_error= needs examples on which the error is measured: pass validate=, a list of batches and, for int8, also "
            "calibrate=, a list of other batches"
        )
    # The examples that calibrated the ranges are not used, because errors would be too small on them.
    if not validate.items:
        calibrate, validate = calibrate.split()
    if len(validate) < 2 and all(array.shape[:1] in ((), (1,)) for array in validate.items[0].values):
        raise CalibrationError("validate= has one example, and the interval of an error needs at least two; pass more")
    if calibrate.items and calibrate.digest == validate.digest:
        raise CalibrationError("validate= has the same batches as calibrate=; pass others to measure the error")
    declared = None if source.is_traced else source.get_declared_function
    return ReducedPrecisionSearch(
        PrecisionOptions(budget, validate, calibrate, choice.names, choice.exact_nodes, choice.table, declared, tuple(inputs))
    )


def quantize_by_table(
    function: Function, original: Function, settings: ModuleOptions, engines: Sequence[GraphCompiler]
) -> Function:
    """Quantize an optimized Function with the calibration table of the settings.

    The table may have been measured on ``original``, the Function before optimization. Weights get 7 bits if, on this processor,
    an engine adds products of 8-bit numbers in 16 bits, which could overflow.

    Raises CalibrationError for a table of another model, OptionError if nothing can be quantized.
    """
    prepared = prepare_for_quantization(function)
    choice, names = settings.choice, list_quantizable_nodes(prepared)
    exact = {index for index, name in names if any(pattern.matches(prepared.node(name)) for pattern in choice.exact_nodes)}
    if len(exact) == len(names):
        why = "no product or convolution has constant weights of float32"
        if names:
            why = f"the constraints keep all {len(names)} nodes in float32"
        raise OptionError(f"nothing of model {function.name!r} is quantized: {why}")
    assert choice.table is not None  # measured by the module if the caller passed no table
    table = fit_table(choice.table, prepared, original)
    return quantize_form(prepared, QuantizedForm(table, frozenset(exact), reduce_range=needs_reduced_range(engines)))


def measure_ranges(declared: Function, settings: ModuleOptions, engines: EngineList) -> CalibrationTable:
    """Run the model on the ``calibrate`` batches of the settings; return the ranges of its values as a table."""
    from xrt.module.module import XRTModule

    listed = [engine for engine in engines.engines if engine.spec != engines.implicit]
    # A separate cache, because executables that return all values are not used again.
    with XRTModule(prepare_for_quantization(declared), listed, cache=CompileCache()) as module:
        return module.calibrate(settings.calibrate)


def calibrate_module(module: XRTModule, batches: Iterable[Any], method: str, parameters: Mapping[str, float]) -> CalibrationTable:
    """Implement `XRTModule.calibrate`: record the ranges of a module's values over ``batches``."""
    if module.sizes.pads_all:
        raise OptionError("calibration cannot observe padded inputs; make the module without shapes=Buckets(...)")
    observer, source = Observer(method, parameters), module.source
    models: dict[object, tuple[Function, Mapping[str, str]]] = {}
    for item in iter_examples(batches, "batches", source.inputs):
        sizes = source.make_key(item.values)
        if sizes not in models:
            function = source.get_function(sizes)
            models[sizes] = function, _list_observed_values(function)
        function, keys = models[sizes]
        inputs = {value.name: array for value, array in zip(function.inputs, item.values, strict=True)}
        observer.add(keys, read_values(function, keys, inputs, partial(_run_on_copies, module, function, inputs)))
    return observer.make_table()


def _list_observed_values(function: Function) -> dict[str, str]:
    """Map the names of the values to observe to their hashes. Raises CalibrationError if the model has nothing to quantize."""
    prepared = prepare_for_quantization(infer_shapes(function))
    prepared_names = [name for name in list_calibrated_values(prepared, DEFAULT_OPTIONS) if function.defines(name)]
    names = dict.fromkeys([*list_calibrated_values(function), *prepared_names])
    if not names:
        raise CalibrationError(
            f"nothing of model {function.name!r} can be quantized: it has no Conv, ConvTranspose, Gemm or MatMul of float32 "
            "with constant weights, so there is nothing to calibrate"
        )
    hashes = hash_values(function)
    return {name: hashes[name] for name in names}


def _run_on_copies(module: XRTModule, function: Function, inputs: Mapping[str, Any], fetch: tuple[str, ...]) -> Iterable[Any]:
    """Return the named values of a call. It gets copies of inputs that the model updates, so that all calls start alike."""
    updated = {name for name, _ in function.aliases}
    args = tuple(np.array(array) if name in updated else array for name, array in inputs.items())
    return module.run_call(args, {}, fetch=fetch, out=None, options=None).values()  # type: ignore[no-any-return]  # a dict


def calibrate(
    model: Any, batches: Iterable[Any], method: str = "minmax", *, engine: Any = None, **parameters: Any
) -> CalibrationTable:
    """Run a model on batches of inputs, and record the range of each value that quantization may need.

    ``model`` is any model that `XRTModule` accepts; it runs on ``engine``. `XRTModule.calibrate` describes the other parameters.
    """
    from xrt.module.module import XRTModule

    with XRTModule(model, engine=engine) as module:
        return module.calibrate(batches, method, **parameters)
