"""Lower precision within an error budget: an exact placement, examples and a budget go in; the fastest plan within it comes out.

A plan is a candidate only once its outputs were compared with those of the exact plan, on examples that nothing was calibrated
on. The exact plan always takes part. Nothing here lowers a precision without a budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.precision.budget import ErrorBudget as ErrorBudget, PrecisionTerms as PrecisionTerms

__all__, __getattr__, __dir__ = load_lazily(__name__)
