"""Gradient rules by family. Importing this package fills the tables of rules and decompositions."""

from xrt.passes.gradient.rules import arithmetic, control_flow, convolutions, indexing, normalizations, recurrent

__all__ = ["arithmetic", "control_flow", "convolutions", "indexing", "normalizations", "recurrent"]
