"""Reduced precision within an error budget: find the fastest plan whose outputs stay close to those of the exact plan.

A plan is a candidate only after its outputs were compared with those of the exact plan, on examples not used for calibration. The
exact plan always takes part. Precision is not reduced without a budget.
"""

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.precision.budget import ErrorBudget as ErrorBudget

__all__, __getattr__, __dir__ = load_lazily(__name__)
