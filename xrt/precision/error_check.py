"""The error of a locked plan, measured again: over the budget, it is as much a failure as a plan that has become slower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from xrt.errors import LockError
from xrt.placement.precision_report import format_error
from xrt.precision.budget import ErrorBudget, Measure, find_fault
from xrt.precision.examples import read_examples
from xrt.precision.execution import Workbench

if TYPE_CHECKING:
    from xrt.formats.precision_record import PrecisionRecord
    from xrt.graph import Value
    from xrt.partition import Plan
    from xrt.placement.regression_check import RegressionSetup

__all__ = ["check_error"]


def check_error(
    setup: RegressionSetup,
    plan: Plan,
    record: PrecisionRecord,
    validate: Sequence[Any] | None,
    inputs: Sequence[Value],
) -> None:
    """Raise LockError where the error of a plan on the examples of its lock is over the budget of the lock.

    The reference engine computes what is expected. Raises LockError too for other examples than those of the lock, and where
    there are none.
    """
    if record.measure not in get_args(Measure):
        raise LockError(
            f"the lock's error was measured by the metric {record.measure!r}, which only its own code can measure again"
        )
    if validate is None:
        raise LockError(
            f"the lock has a plan in {record.precision}, whose error must be measured again, and the examples of validation are "
            "not to be found; pass --validate"
        )
    examples = read_examples(validate, "validate", inputs)
    if record.validation and examples.digest != record.validation:
        raise LockError("the examples of validation are others than those of the lock; write the lock again with `xrt lock`")
    budget = ErrorBudget(record.limit, record.measure)  # type: ignore[arg-type]  # it was compared with the names above
    request = setup.request
    fitted = examples.fit(request.function, inputs)
    program = Workbench(request, setup.cache, request.engines).compile(plan)
    try:
        found, _ = Workbench(request, setup.cache, request.engines).run(program, fitted)
    finally:
        program.close()
    plain = request.function.replace(aliases=())
    expected = [list(setup.reference(plain, list(item.values))) for item in fitted.items]
    if fault := find_fault(expected, found):
        raise LockError(f"the plan in {record.precision} computes wrongly: {fault}")
    error = budget.measure_error(expected, found, [item.given for item in fitted.items])
    if error.bound > record.limit:
        now, limit, was = (format_error(one, record.measure) for one in (error.bound, record.limit, record.error))
        raise LockError(
            f"the error of the plan in {record.precision} is over the budget: up to {now}, and {limit} is allowed; it was {was} "
            "when it was locked"
        )
