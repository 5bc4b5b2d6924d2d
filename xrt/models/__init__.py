"""Graphs to try things on: the light models of the ``onnx`` package, models written by code, and inputs for any Function.

A name and a seed, or a Function, come in; a Function or its inputs come out, the same ones for the same seed. Nothing is
downloaded and nothing is run.
"""

from xrt.models.inputs import sample_inputs
from xrt.models.light import light_models, load_light
from xrt.models.shipped import check_sizes, load, names, sizes_of
from xrt.models.weights import with_random_weights

__all__ = ["check_sizes", "light_models", "load", "load_light", "names", "sample_inputs", "sizes_of", "with_random_weights"]
