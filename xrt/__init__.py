"""XRT runs one model on several engines: partition, place, compile, cache, launch.

    import numpy as np, xrt

    class ReluGraph(xrt.Graph):
        def build(self, x):
            return xrt.ops.Relu(x)

    m = xrt.XRTModule(ReluGraph(), engine="toy")
    m(np.ones((2, 3), "float32"))

Names load on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt import errors as errors, serve as serve, training as training
    from xrt.builder import ops as ops
    from xrt.builder.tracing import Graph as Graph
    from xrt.engines import (
        CompileContext as CompileContext,
        Executable as Executable,
        ExecutionOptions as ExecutionOptions,
        GraphCompiler as GraphCompiler,
        OpTable as OpTable,
        RunOptions as RunOptions,
    )
    from xrt.errors import XRTError as XRTError, XRTWarning as XRTWarning
    from xrt.formats.calibration_table import CalibrationTable as CalibrationTable
    from xrt.formats.onnx import load as load_onnx  # noqa: F401  # in __all__
    from xrt.frontends.torch import from_torch as from_torch, to_torch as to_torch
    from xrt.graph import DType as DType, Function as Function, Node as Node, Value as Value
    from xrt.module import (
        Buckets as Buckets,
        Isolation as Isolation,
        XRTModule as XRTModule,
        calibrate as calibrate,
        configure as configure,
        load as load,
        stateful as stateful,
    )
    from xrt.partition import ClusteringOptions as ClusteringOptions, Plan as Plan
    from xrt.passes.gradient import gradient as gradient
    from xrt.precision import ErrorBudget as ErrorBudget
    from xrt.training import TrainModule as TrainModule

from xrt.lazy_names import load_lazily
from xrt.logging import configure_logging

__version__ = "0.1.0"

_names, __getattr__, _ = load_lazily(__name__)
__all__ = [*_names, "__version__"]


def __dir__() -> list[str]:
    return sorted(__all__)


configure_logging(os.environ)
