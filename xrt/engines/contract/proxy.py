"""Proxies of engines: `LazyEngine` imports an engine on first use, `RecordedSupportEngine` stores results of `why_not`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

from xrt.engines.contract import registry
from xrt.engines.contract.graph_compiler import Executable, GraphCompiler
from xrt.engines.contract.registry import EngineStatus

if TYPE_CHECKING:
    from xrt.engines.contract.options import CompileContext, Precision
    from xrt.graph import Function, Node


class EngineProxy(GraphCompiler):
    """An engine that forwards `why_not`, `compile` and the members that are listed below to the engine ``inner``."""

    inner: GraphCompiler

    def why_not(self, node: Node, function: Function) -> str | None:
        return self.inner.why_not(node, function)

    def compile(self, function: Function, context: CompileContext) -> Executable:
        return self.inner.compile(function, context)


# Not forwarded are `with_precision` and the methods for `xrt engines`, because a proxy must implement these itself.
_FORWARDED = """
    spec implementation version supports_dynamic_shapes why_not_dynamic unsupported_options fuses_dequantization
    list_mutable_inputs remarks is_worth_saving save load can_load_with_threads
"""
for _name in _FORWARDED.split():
    setattr(EngineProxy, _name, property(attrgetter(f"inner.{_name}")))


class LazyEngine(EngineProxy):
    """A registered engine with default options that is imported on first use. Until then its stored status describes it."""

    def __init__(self, status: EngineStatus) -> None:
        self.status = status
        self.name = status.name  # type: ignore[misc]  # an instance attribute shadows the class variable
        self.devices = status.devices  # type: ignore[misc]

    @cached_property
    def inner(self) -> GraphCompiler:  # type: ignore[override]  # read-only
        """The real engine. Raises EngineUnavailable if it is no longer installed."""
        return registry.create(self.name)

    @property
    def spec(self) -> str:
        return self.name

    @property
    def compiles_in_parallel(self) -> bool:  # type: ignore[override]  # a class variable in the base class
        return self.inner.compiles_in_parallel

    def unsupported_options(self, context: CompileContext) -> str | None:
        # Every engine supports fp32, so the library need not be imported.
        return self.inner.unsupported_options(context) if context.options.precision != "fp32" else None

    def with_precision(self, precision: Precision) -> GraphCompiler | None:
        return self.inner.with_precision(precision)

    def missing_features(self) -> str:
        return self.status.lacks


class ImplicitEngine(LazyEngine):
    """The reference engine, which XRT adds to the user's engines. It rarely runs, so its properties do not require its import."""

    supports_dynamic_shapes = True
    compiles_in_parallel = True

    def __init__(self, name: str) -> None:
        super().__init__(EngineStatus(name, "ready", "", devices=("cpu", "cuda")))


class RecordedSupportEngine(EngineProxy):
    """An engine whose `why_not` returns stored reasons. It cannot compile; it is for plans that are explained but not run."""

    def __init__(self, engine: GraphCompiler, declined: Mapping[str, str]) -> None:
        """``declined`` has the reasons by node name."""
        self.inner = engine
        self._declined = declined
        self.name = engine.name  # type: ignore[misc]  # an instance attribute shadows the class variable
        self.devices = engine.devices  # type: ignore[misc]

    def why_not(self, node: Node, function: Function) -> str | None:
        return self._declined.get(node.name)

    def compile(self, function: Function, context: CompileContext) -> Executable:
        raise NotImplementedError(f"this proxy of {self.spec!r} has only stored results of why_not, so it cannot compile")


def load_engine(engine: GraphCompiler) -> GraphCompiler:
    """Import the engine of a `LazyEngine`. Other engines are returned unchanged."""
    return engine.inner if isinstance(engine, LazyEngine) else engine
