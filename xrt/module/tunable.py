"""A module that places by measurement: how it was placed, and searches on request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xrt.errors import OptionError
from xrt.module.specializable import Specializable
from xrt.module.tracebacks import shorten_tracebacks

if TYPE_CHECKING:
    from xrt.module.options import ModuleOptions
    from xrt.placement import ProgressCallback, TuningResult
    from xrt.precision import ErrorBudget
    from xrt.precision.lowering import LoweringWithinBudget

__all__ = ["Tunable"]


@shorten_tracebacks
class Tunable(Specializable):
    """A module whose signatures can be placed by measurement."""

    _current: Callable[..., Any]
    _check_inputs: Callable[..., Sequence[Any]]

    @property
    def tuned(self) -> TuningResult | None:
        """How the last signature was placed by measurement: who ran against whom; None where it was not. Prints as text."""
        return self._current().tuned  # type: ignore[no-any-return]  # of a Specialization

    def tune(
        self,
        *args: Any,
        budget: float | None = None,
        progress: ProgressCallback | bool | None = None,
        max_error: float | ErrorBudget | None = None,
        calibrate: Iterable[Any] | None = None,
        validate: Iterable[Any] | None = None,
        **named: Any,
    ) -> TuningResult:
        """Search again for the fastest placement for these inputs, or for random ones, within ``budget`` seconds.

        The module uses the placement from now on. The cache keeps it, and later modules use it whatever their budget.
        ``progress`` is called with the state of the search; True shows it, False does not. ``max_error``, ``calibrate`` and
        ``validate`` are as for `XRTModule`, and replace the module's.
        """
        lower = self._lowering
        if max_error is not None or calibrate is not None or validate is not None:
            lower = self._make_lowering(self._override(max_error, calibrate, validate))
        values = self._check_inputs(args, named) if args or named else None
        placing = self._automatic.make_placer(values, budget=budget, progress=progress, retune=True, lower=lower)
        build = self._specialize(values, place=placing)
        self._adopt_decision(build)
        return build.tuned  # type: ignore[return-value]  # it has just been placed

    def _override(self, max_error: Any, calibrate: Any, validate: Any) -> ModuleOptions:
        """Return the settings with what a search was given in their place."""
        from xrt.engines.contract.options import LOWER_PRECISIONS
        from xrt.precision.budget import parse_budget

        own = self._settings
        if max_error is None and own.max_error is None:
            raise OptionError("calibrate= and validate= have examples for an error budget; pass max_error= too")
        return replace(
            own,
            max_error=own.max_error if max_error is None else parse_budget(max_error),
            calibrate=own.calibrate if calibrate is None else calibrate,
            validate=own.validate if validate is None else validate,
            choice=replace(own.choice, names=own.choice.names or LOWER_PRECISIONS),
        )

    def _make_lowering(self, settings: ModuleOptions) -> LoweringWithinBudget | None:
        if settings.max_error is None:
            return None
        from xrt.module.precision import make_lowering  # for those alone who allow an error

        return make_lowering(settings, self._served)
