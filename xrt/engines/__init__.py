"""Engines: the contract that an author implements, and the way from a name to an engine.

A Function and a CompileContext go in, an Executable comes out. The engines themselves are leaves below this package;
they never see each other, nor the partitioner, the cache or the runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import Deviation as Deviation
    from xrt.engines.contract.graph_compiler import Executable as Executable
    from xrt.engines.contract.graph_compiler import GraphCompiler as GraphCompiler
    from xrt.engines.contract.graph_compiler import MemoryUse as MemoryUse
    from xrt.engines.contract.graph_compiler import peak_of_values as peak_of_values
    from xrt.engines.contract.op_table import Kernel as Kernel
    from xrt.engines.contract.op_table import OpTable as OpTable
    from xrt.engines.contract.op_table import Predicate as Predicate
    from xrt.engines.contract.options import CompileContext as CompileContext
    from xrt.engines.contract.options import ExecutionOptions as ExecutionOptions
    from xrt.engines.contract.options import Precision as Precision
    from xrt.engines.contract.options import RunOptions as RunOptions
    from xrt.engines.contract.registry import EngineDeclaration as EngineDeclaration
    from xrt.engines.contract.registry import EngineStatus as EngineStatus
    from xrt.engines.contract.registry import create as create
    from xrt.engines.contract.registry import engine_class as engine_class
    from xrt.engines.contract.registry import names as names
    from xrt.engines.contract.registry import probe as probe
    from xrt.engines.contract.spec import build as build
    from xrt.engines.contract.spec import format_spec as format_spec
    from xrt.engines.contract.spec import option as option
    from xrt.engines.contract.spec import parse_spec as parse_spec
    from xrt.engines.contract.spec import split_specs as split_specs
    from xrt.engines.toolkit.blas import blas_limit as blas_limit

_MODULES = {
    "CompileContext": "xrt.engines.contract.options",
    "Deviation": "xrt.engines.contract.graph_compiler",
    "EngineDeclaration": "xrt.engines.contract.registry",
    "EngineStatus": "xrt.engines.contract.registry",
    "Executable": "xrt.engines.contract.graph_compiler",
    "ExecutionOptions": "xrt.engines.contract.options",
    "GraphCompiler": "xrt.engines.contract.graph_compiler",
    "Kernel": "xrt.engines.contract.op_table",
    "MemoryUse": "xrt.engines.contract.graph_compiler",
    "OpTable": "xrt.engines.contract.op_table",
    "Precision": "xrt.engines.contract.options",
    "Predicate": "xrt.engines.contract.op_table",
    "RunOptions": "xrt.engines.contract.options",
    "blas_limit": "xrt.engines.toolkit.blas",
    "build": "xrt.engines.contract.spec",
    "create": "xrt.engines.contract.registry",
    "engine_class": "xrt.engines.contract.registry",
    "format_spec": "xrt.engines.contract.spec",
    "names": "xrt.engines.contract.registry",
    "option": "xrt.engines.contract.spec",
    "parse_spec": "xrt.engines.contract.spec",
    "peak_of_values": "xrt.engines.contract.graph_compiler",
    "probe": "xrt.engines.contract.registry",
    "split_specs": "xrt.engines.contract.spec",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
