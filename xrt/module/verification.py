"""Comparison of a module's regions with the reference engine, and calibration: the ranges of its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from xrt.calibration.collectors import Observer, group_by_bytes
from xrt.errors import CalibrationError, OptionError
from xrt.graph import hash_values
from xrt.passes import infer_shapes
from xrt.passes.quantize import list_calibrated_values
from xrt.passes.quantize.form import OPTIONS, prepare_for_quantization

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.graph import Function
    from xrt.module.module import XRTModule
    from xrt.verify import FailingSubgraph, Verification
    from xrt.verify.regions import Progress

__all__ = [
    "ModuleCalibration",
    "bisect",
    "calibrate",
    "calibrate_module",
    "call_observed",
    "copy_value",
    "verify",
]


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


class ModuleCalibration(ContextDecorator):
    """While it is open, calls of the module are observed, whichever thread makes them; `table` has the ranges.

    It can be opened again, and collects on. As a decorator it is open during each call of the function. Calls of sessions are
    observed too; those of bound arrays are not.
    """

    def __init__(self, module: XRTModule, method: str, parameters: Mapping[str, float]) -> None:
        if module.sizes.pads_all:
            raise OptionError("calibration observes inputs of their own size; make the module without shapes=Buckets(...)")
        self._module, self.observer = module, Observer(method, parameters)
        self._sites: dict[object, _Site] = {}

    @property
    def table(self) -> CalibrationTable:
        """The ranges of what was observed so far; raises CalibrationError where no call was."""
        return self.observer.make_table()

    @property
    def batches(self) -> int:
        """How many calls were observed."""
        return self.observer.batches

    def __enter__(self) -> Self:
        self._module.dispatcher.observe(self, begins=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._module.dispatcher.observe(self, begins=False)

    def find_site(self, values: Sequence[Any]) -> _Site:
        """The values that are observed in calls with such inputs."""
        source = self._module.source
        key = source.key(values, False)
        if key not in self._sites:
            self._sites[key] = _Site.of(source.function(values, False))
        return self._sites[key]


@dataclass(frozen=True, slots=True)
class _Site:
    """What is observed in calls of one signature."""

    function: Function
    keys: Mapping[str, str]
    """By name of an observed value."""
    groups: tuple[tuple[str, ...], ...]
    """Names that are fetched by one run; the first one has the outputs too."""

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
        groups = list(group_by_bytes([name for name in names if name not in given], function))
        first = tuple(dict.fromkeys([*(value.name for value in function.outputs), *(groups[0] if groups else ())]))
        return cls(function, {name: keys[name] for name in names}, (first, *groups[1:]))


def call_observed(module: XRTModule, open_ones: Sequence[ModuleCalibration], values: Sequence[Any], *, is_plain: bool) -> Any:
    """Run the model so that the calibrations observe it, each once; return what a plain call returns.

    What a call updates in place is updated by the plain one alone, and observed as it was before.
    """
    open_ones = tuple(dict.fromkeys(open_ones))
    site = open_ones[0].find_site(values)
    names, updated = [value.name for value in site.function.inputs], {name for name, _ in site.function.aliases}
    for one in open_ones:
        one.observer.check(zip(names, values, strict=False), "input")

    def copy_updated() -> tuple[Any, ...]:
        return tuple(np.array(x) if name in updated else x for name, x in zip(names, values, strict=True))

    found: dict[str, Any] = dict(zip(names, copy_updated(), strict=True))
    found |= {name: site.function.constants[name].array for name in site.keys if name in site.function.constants}
    for group in site.groups[1:]:
        found.update(module.run_call(copy_updated(), {}, group, None, None))
    fetched = module.run_call(tuple(values) if is_plain else copy_updated(), {}, site.groups[0], None, None)
    results = tuple(fetched[value.name] for value in site.function.outputs)
    found = fetched | found
    seen = {key: (name, np.asarray(found[name])) for name, key in site.keys.items()}
    for one in open_ones:
        one.observer.add(seen)
    return results[0] if len(results) == 1 else results


def calibrate_module(module: XRTModule, batches: Iterable[Any], method: str, parameters: Mapping[str, float]) -> CalibrationTable:
    """Return the table of the module's values over batches: see `XRTModule.calibrate`."""
    if isinstance(batches, Mapping | np.ndarray | str | bytes) or not isinstance(batches, Iterable):
        raise CalibrationError(
            f"calibration needs a list of batches, each what a call takes; got one {type(batches).__name__}: pass [x]"
        )
    calibration = ModuleCalibration(module, method, parameters)
    with calibration:
        for batch in batches:
            if isinstance(batch, Mapping):
                module(**batch)
            else:
                module(*(batch if isinstance(batch, list | tuple) else (batch,)))
    if not calibration.batches:
        raise CalibrationError("calibration got no batches; pass at least one, as a list of what calls take")
    return calibration.table


def calibrate(
    model: Any, batches: Iterable[Any], method: str = "minmax", *, engine: Any = None, **parameters: Any
) -> CalibrationTable:
    """Return a calibration table of a model over batches: the range of each value that quantization may need.

    ``model`` is anything that `XRTModule` takes, and ``engine`` what runs it. A batch is an array, a list of arrays in the order
    of the inputs, or a dict of arrays by name; batches may come from a generator. ``method`` is ``"minmax"``,
    ``"moving_average"`` (``momentum=0.9``), ``"entropy"``, ``"percentile"`` (``percentile=99.99``) or ``"mse"``.

    Raises CalibrationError without batches, and for NaN or infinities; OptionError for an unknown method or parameter; and what a
    call raises. Warns of one batch where the method needs several.
    """
    from xrt.module.module import XRTModule

    with XRTModule(model, engine=engine) as module:
        return module.calibrate(batches, method, **parameters)
