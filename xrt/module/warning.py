"""Warnings that point at the user's own line: `xrt.errors.warn`, under the name by which the module knows it."""

from __future__ import annotations

from xrt.errors import warn

__all__ = ["warn"]
