"""Engines: the contract that an author implements, and the way from a name to an engine.

A Function and a CompileContext go in, an Executable comes out. The engines themselves are leaves below this package;
they never see each other, nor the partitioner, the cache or the runtime.
"""

from xrt.engines.blas import blas_limit
from xrt.engines.contract import Executable, GraphCompiler
from xrt.engines.fields import option
from xrt.engines.memory import MemoryUse, peak_of_values
from xrt.engines.optable import Kernel, OpTable, Predicate
from xrt.engines.options import CompileContext, ExecutionOptions, Precision, RunOptions
from xrt.engines.registry import EngineStatus, create, engine_class, names, probe
from xrt.engines.spec import build, parse_spec, spec_of, split_specs

__all__ = [
    "CompileContext",
    "EngineStatus",
    "Executable",
    "ExecutionOptions",
    "GraphCompiler",
    "Kernel",
    "MemoryUse",
    "OpTable",
    "Precision",
    "Predicate",
    "RunOptions",
    "blas_limit",
    "build",
    "create",
    "engine_class",
    "names",
    "option",
    "parse_spec",
    "peak_of_values",
    "probe",
    "spec_of",
    "split_specs",
]
