"""Compare a module's regions with the reference engine, and calibrate: record the ranges of its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.errors import CalibrationError, OptionError
from xrt.graph import hash_values
from xrt.passes import infer_shapes
from xrt.passes.quantize import list_calibrated_values
from xrt.passes.quantize.form import OPTIONS, prepare_for_quantization
from xrt.precision.collectors import Observer, group_by_bytes

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.graph import Function
    from xrt.module.module import XRTModule
    from xrt.verify import FailingSubgraph, Verification
    from xrt.verify.regions import Progress


def copy_value(value: Any) -> Any:
    """Copy an argument; arrays of any library have ``copy`` or ``clone``."""
    if isinstance(value, list):
        return [copy_value(element) for element in value]
    copy = getattr(value, "copy", None) or getattr(value, "clone", None)
    return copy() if callable(copy) else value


def verify(
    module: XRTModule, args: Sequence[Any], named: Mapping[str, Any], *, inner: bool, progress: Progress | None
) -> Verification:
    """Compare every region with the reference engine: see `XRTModule.verify`."""
    from xrt.placement.reference import evaluate
    from xrt.runtime import to_host
    from xrt.verify import verify as verify_plan
    from xrt.verify.regions import ignore_progress

    values = module.check_inputs(args, named)
    if module.specialize(values).function.aliases:  # the model updates its inputs
        args, named = tuple(map(copy_value, args)), {name: copy_value(value) for name, value in named.items()}
    module(*args, **named)
    build, report = module.specialize(values), progress or ignore_progress
    function, engines, context = build.full_function(), build.engines.by_spec, build.engines.context
    return verify_plan(function, build.plan, engines, to_host(values), evaluate, context, inner=inner, progress=report)


def bisect(
    module: XRTModule, args: Sequence[Any], named: Mapping[str, Any], *, progress: Progress | None
) -> FailingSubgraph | None:
    """Find the smallest part of a region that differs from the reference engine: see `XRTModule.bisect`."""
    from xrt.placement.reference import evaluate
    from xrt.runtime import to_host
    from xrt.verify import bisect_plan
    from xrt.verify.regions import ignore_progress

    values = module.check_inputs(args, named)
    build, report = module.specialize(values), progress or ignore_progress
    return bisect_plan(build.plan, build.engines.by_spec, to_host(values), evaluate, build.engines.context, progress=report)


@dataclass(frozen=True, slots=True)
class _Site:
    """The values to observe in calls of one signature."""

    function: Function
    keys: Mapping[str, str]
    """Calibration keys by name of the observed value."""
    groups: tuple[tuple[str, ...], ...]
    """Names of values, grouped by the run that fetches them."""

    @classmethod
    def of(cls, function: Function) -> _Site:
        prepared = prepare_for_quantization(infer_shapes(function))
        more = (name for name in list_calibrated_values(prepared, OPTIONS) if function.defines(name))
        names, keys = list(dict.fromkeys([*list_calibrated_values(function), *more])), hash_values(function)
        if not names:
            raise CalibrationError(
                f"nothing of model {function.name!r} can be quantized: it has no Conv, ConvTranspose, Gemm or MatMul of float32 "
                "with constant weights, so there is nothing to calibrate"
            )
        given = {value.name for value in function.inputs} | set(function.constants)
        groups = tuple(group_by_bytes([name for name in names if name not in given], function))
        return cls(function, {name: keys[name] for name in names}, groups)

    def observe(self, module: XRTModule, values: Sequence[Any], observer: Observer) -> None:
        """Run the model on copies of the inputs that it updates, and add the values of the run."""
        names, updated = [value.name for value in self.function.inputs], {name for name, _ in self.function.aliases}
        inputs = dict(zip(names, values, strict=True))
        observer.check(inputs.items(), "input")
        seen = {name: np.array(value) if name in updated else value for name, value in inputs.items()}
        seen |= {name: self.function.constants[name].array for name in self.keys if name in self.function.constants}
        for group in self.groups:
            args = tuple(np.array(value) if name in updated else value for name, value in inputs.items())
            seen |= module.run_call(args, {}, group, None, None)
        observer.add({key: (name, np.asarray(seen[name])) for name, key in self.keys.items()})


def calibrate_module(module: XRTModule, batches: Iterable[Any], method: str, parameters: Mapping[str, float]) -> CalibrationTable:
    """Record the ranges of a module's values over batches: see `XRTModule.calibrate`."""
    if isinstance(batches, Mapping | np.ndarray | str | bytes) or not isinstance(batches, Iterable):
        raise CalibrationError(
            f"calibration needs a list of batches, each what a call takes; got one {type(batches).__name__}: pass [x]"
        )
    if module.sizes.pads_all:
        raise OptionError("calibration observes inputs of their own size; make the module without shapes=Buckets(...)")
    observer, source, sites = Observer(method, parameters), module.source, dict[object, _Site]()
    for batch in batches:
        args = () if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else (batch,)
        values = module.check_inputs(args, batch if isinstance(batch, Mapping) else {}, pads=False)
        if (key := source.key(values, False)) not in sites:
            sites[key] = _Site.of(source.function(values, False))
        sites[key].observe(module, values, observer)
    if not observer.batches:
        raise CalibrationError("calibration got no batches; pass at least one, as a list of what calls take")
    return observer.make_table()


def calibrate(
    model: Any, batches: Iterable[Any], method: str = "minmax", *, engine: Any = None, **parameters: Any
) -> CalibrationTable:
    """Calibrate a model over batches: record the range of each value that quantization may need.

    ``model`` is anything that `XRTModule` takes, and ``engine`` what runs it. A batch is an array, a list of arrays in the order
    of the inputs, or a dict of arrays by name; batches may come from a generator. ``method`` is ``"minmax"``,
    ``"moving_average"`` (``momentum=0.9``), ``"entropy"``, ``"percentile"`` (``percentile=99.99``) or ``"mse"``.

    Raises CalibrationError without batches, and for NaN or infinities; OptionError for an unknown method or parameter; and the
    errors of a call. Warns about a single batch if the method needs several.
    """
    from xrt.module.module import XRTModule

    with XRTModule(model, engine=engine) as module:
        return module.calibrate(batches, method, **parameters)
