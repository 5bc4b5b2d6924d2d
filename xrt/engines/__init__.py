"""Engines: the contract that an author implements, and the registry that maps names to engines.

An engine compiles a Function and a CompileContext to an Executable. Each engine is a package below this one. It never imports
another engine, the partitioner, the cache or the runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import (
        Deviation as Deviation,
        Executable as Executable,
        GraphCompiler as GraphCompiler,
        MemoryUse as MemoryUse,
    )
    from xrt.engines.contract.op_table import Kernel as Kernel, OpTable as OpTable, Predicate as Predicate
    from xrt.engines.contract.options import (
        CompileContext as CompileContext,
        ExecutionOptions as ExecutionOptions,
        Precision as Precision,
        RunOptions as RunOptions,
        check_options as check_options,
        option as option,
    )
    from xrt.engines.contract.registry import (
        EngineDeclaration as EngineDeclaration,
        EngineStatus as EngineStatus,
        create as create,
        engine_class as engine_class,
        names as names,
        probe as probe,
    )
    from xrt.engines.contract.spec import (
        build as build,
        format_spec as format_spec,
        parse_spec as parse_spec,
        split_specs as split_specs,
    )
    from xrt.engines.toolkit.blas import blas_limit as blas_limit
    from xrt.engines.toolkit.memory import compute_peak_of_values as compute_peak_of_values

__all__, __getattr__, __dir__ = load_lazily(__name__)
