"""Training: a model and an optimizer go in, and one Function comes out whose state is the parameters.

A step is a Function like another: an XRTModule plans, explains and caches it. A session owns the parameters and what the
optimizer remembers, and calls it. Nothing here runs an operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.training.module import TrainModule as TrainModule
    from xrt.training.optimizers import LAMB as LAMB
    from xrt.training.optimizers import SGD as SGD
    from xrt.training.optimizers import Adagrad as Adagrad
    from xrt.training.optimizers import Adam as Adam
    from xrt.training.optimizers import AdamW as AdamW
    from xrt.training.optimizers import update as update
    from xrt.training.steps import CrossEntropy as CrossEntropy
    from xrt.training.steps import MeanSquaredError as MeanSquaredError
    from xrt.training.steps import list_parameters as list_parameters
    from xrt.training.steps import step as step

_MODULES = {
    "Adagrad": "xrt.training.optimizers",
    "Adam": "xrt.training.optimizers",
    "AdamW": "xrt.training.optimizers",
    "CrossEntropy": "xrt.training.steps",
    "LAMB": "xrt.training.optimizers",
    "MeanSquaredError": "xrt.training.steps",
    "SGD": "xrt.training.optimizers",
    "TrainModule": "xrt.training.module",
    "list_parameters": "xrt.training.steps",
    "step": "xrt.training.steps",
    "update": "xrt.training.optimizers",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
