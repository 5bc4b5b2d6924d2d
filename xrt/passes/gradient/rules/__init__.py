"""The rules, by family: importing this package fills `xrt.passes.gradient.table.RULES` and the table of definitions."""

from xrt.passes.gradient.rules import arithmetic, control_flow, convolutions, indexing, normalizations, recurrent

__all__ = ["arithmetic", "control_flow", "convolutions", "indexing", "normalizations", "recurrent"]
