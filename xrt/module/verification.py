"""A module seen from inside: its regions against the reference engine, and the ranges of its values."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from xrt.module.tracebacks import shorten_tracebacks

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.module.calibration import ModuleCalibration
    from xrt.module.output_checks import OutputChecks
    from xrt.module.specialization import Specialization
    from xrt.verify import FailingSubgraph, Verification
    from xrt.verify.progress import Progress

__all__ = ["Verifiable"]


@shorten_tracebacks
class Verifiable:
    """A module whose regions can be compared with the reference engine, and whose values can be observed."""

    _checks: OutputChecks
    _observers: tuple[ModuleCalibration, ...] = ()
    """The open calibrations."""

    def verify(self, *args: Any, inner: bool = True, progress: Progress | None = None, **named: Any) -> Verification:
        """Run the model on such inputs, and compare every region with the reference engine, with ``inner`` every value inside.

        Prints as text; true if nothing differs. ``progress`` is called with the number of regions done and their total. Raises
        InputError for inputs that do not fit, EngineError if the model or a region of it does not compile or run.
        """
        from xrt.placement.reference import evaluate
        from xrt.runtime import to_host
        from xrt.verify import verify
        from xrt.verify.progress import ignore_progress

        values = self._check_inputs(args, named)
        self(*copy.deepcopy(args), **copy.deepcopy(named))  # copies: a model may update its inputs
        build, given = self._specialize(values), to_host(values)
        engines, plan = build.engines, build.plan
        terms = build.full_function(), plan, engines.by_spec, given, evaluate, engines.context
        return verify(*terms, inner=inner, progress=progress or ignore_progress)

    def bisect(self, *args: Any, progress: Progress | None = None, **named: Any) -> FailingSubgraph | None:
        """Return the smallest part of a region that differs from the reference engine on such inputs; None if none does.

        ``progress`` is called with the number of parts tried and the node count of the smallest so far. `save_case` of
        `xrt.formats.onnx` writes the result to a file.
        """
        from xrt.placement.reference import evaluate
        from xrt.runtime import to_host
        from xrt.verify import bisect_plan
        from xrt.verify.progress import ignore_progress

        values = self._check_inputs(args, named)
        build, given = self._specialize(values), to_host(values)
        terms = build.plan, build.engines.by_spec, given, evaluate, build.engines.context
        return bisect_plan(*terms, progress=progress or ignore_progress)

    def calibrate(self, batches: Iterable[Any], method: str = "minmax", **parameters: Any) -> CalibrationTable:
        """Return the ranges of the values that quantization may need, over batches of inputs.

        A batch is an array, a list of arrays in the order of the inputs, or a dict of arrays by name. ``method`` is ``"minmax"``,
        ``"moving_average"`` (``momentum=0.9``), ``"entropy"``, ``"percentile"`` (``percentile=99.99``) or ``"mse"``. The table
        finds values by what computes them, whatever they are called.

        Raises CalibrationError without batches, and for NaN or infinities; OptionError for an unknown method or parameter.
        """
        from xrt.module.calibration import calibrate_module

        return calibrate_module(self, batches, method, parameters)  # type: ignore[arg-type]  # an XRTModule

    def calibration(self, method: str = "minmax", **parameters: Any) -> ModuleCalibration:
        """Return a context, or decorator, in which calls of the module are observed: ``with m.calibration() as c: m(x)``.

        ``c.table`` has the ranges, by the methods of `calibrate`. Calls of all threads count while it is open.
        """
        from xrt.module.calibration import ModuleCalibration

        return ModuleCalibration(self, method, parameters)  # type: ignore[arg-type]  # an XRTModule

    def _check_inputs(self, args: Sequence[Any], named: Any) -> list[Any]:
        raise NotImplementedError

    def _specialize(self, values: Any) -> Specialization:
        raise NotImplementedError

    def __call__(self, *args: Any, **named: Any) -> Any:
        raise NotImplementedError
