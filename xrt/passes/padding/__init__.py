"""Padding of open dims: a Function whose inputs are filled up with zeros, and whose results begin with what they were.

What goes in is a Function with named extents; what comes out is one that may be given larger sizes, with masks where an operator
would read what was padded. A dim for which that cannot be shown is left as it is, with the node and the reason.
"""

from xrt.passes.padding.function import PaddedFunction, pad_dims
from xrt.passes.padding.padder import Axis, Extent, PaddingRefusal

__all__ = ["Axis", "Extent", "PaddedFunction", "PaddingRefusal", "pad_dims"]
