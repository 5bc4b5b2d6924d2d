"""Graphs to try things on: the light models of the ``onnx`` package, and inputs for any Function.

A name or a Function and a seed come in; a Function or its inputs come out, the same ones for the same seed. Nothing is
downloaded and nothing is run.
"""

from xrt.models.inputs import sample_inputs
from xrt.models.light import light_models, load_light
from xrt.models.weights import with_random_weights

__all__ = ["light_models", "load_light", "sample_inputs", "with_random_weights"]
