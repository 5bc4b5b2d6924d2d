"""Training: compile a model, a loss and an optimizer to one Function, with the parameters as state.

A training step is an ordinary Function: an XRTModule plans, explains and caches it, and a session holds parameters and optimizer
state.
"""

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.training.module import TrainModule as TrainModule
    from xrt.training.optimizers import (
        LAMB as LAMB,
        SGD as SGD,
        Adagrad as Adagrad,
        Adam as Adam,
        AdamW as AdamW,
        update as update,
    )
    from xrt.training.steps import (
        CrossEntropy as CrossEntropy,
        MeanSquaredError as MeanSquaredError,
        list_parameters as list_parameters,
        step as step,
    )

__all__, __getattr__, __dir__ = load_lazily(__name__)
