"""Padding of dynamic dims, so that one compiled program supports several sizes.

The padded Function accepts larger, zero-padded inputs, and the leading part of each output is the result without padding. Masks
are inserted before operators that would read padding. A dim for which equal results cannot be proved is refused, with the node
and the reason.
"""

from xrt.passes.extents import Extent
from xrt.passes.padding.function import PaddedFunction, pad_dims
from xrt.passes.padding.padder import Axis, PaddingRefusal

__all__ = ["Axis", "Extent", "PaddedFunction", "PaddingRefusal", "pad_dims"]
