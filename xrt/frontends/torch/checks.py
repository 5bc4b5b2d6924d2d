"""Operators of PyTorch that check values and compute nothing. A Function has none of them."""

from __future__ import annotations

__all__ = ["CHECKS"]

CHECKS = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten._assert_scalar.default",
        "aten._assert_async.msg",
        "aten._assert_async.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
        "aten._functional_assert_scalar.default",
        "aten._functional_assert_async.msg",
        "aten._functional_sym_constrain_range_for_size.default",
        "aten._linalg_check_errors.default",
    }
)
"""By the names of their overloads."""
