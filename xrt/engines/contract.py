"""The contract between XRT and an engine: what an engine author writes.

An engine is a frozen dataclass that derives from `GraphCompiler`. Its fields are its options: they give the
constructor, the spec text ``"tvm{opt_level=3}"``, validation and a part of the signature. Two methods are mandatory,
`why_not` and `compile`; everything else has an honest default.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

from xrt.engines.options import CompileContext, RunOptions
from xrt.errors import CompileRefused
from xrt.graph import Function, Node

__all__ = ["Executable", "GraphCompiler"]


class Executable(abc.ABC):
    """What a GraphCompiler makes of one Function. It holds no state of a call: threads may run it at once."""

    outputs_are_fresh: ClassVar[bool] = False
    """Whether no output ever shares memory with an input, a constant or another output. False is conservative: XRT copies."""

    def prepare(self) -> None:  # noqa: B027  # optional on purpose: an empty default is the honest one
        """Allocate, bind and choose kernels; called once before the first run."""

    @abc.abstractmethod
    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        """Return the Function's outputs, in its order, from its inputs, in its order.

        Tensors are NumPy arrays of the declared type (0-d ones too, never scalars), native byte order, any strides;
        sequences are lists; an absent optional is None. Every run allocates its outputs anew. Inputs are not modified,
        except that an engine may write an output into the input that an alias of the Function pairs with it, and return
        that input in its place; where it does not, XRT copies. With ``options.out`` the given buffers hold the outputs
        afterwards, and are what is returned in their places.
        """

    def close(self) -> None:  # noqa: B027  # optional on purpose: an empty default is the honest one
        """Give back what the executable holds; called once, after the last run."""


class GraphCompiler(abc.ABC):
    """An engine. Derive a ``@dataclass(frozen=True)`` from it; the fields are the options."""

    name: ClassVar[str]
    """The engine's name, by which it is registered: lower case, letters, digits and underscores."""
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    """Kinds of device on which it runs: ``"cpu"``, ``"cuda"``."""
    supports_dynamic_shapes: ClassVar[bool] = False
    """Whether one executable serves every size of a symbolic dimension. False is conservative: one is compiled per shape."""

    @abc.abstractmethod
    def why_not(self, node: Node, function: Function) -> str | None:
        """Return why the engine cannot take the node, as one sentence for a person; None when it can.

        Asked of every node of a model: pure, cheap (memoise by operator, version and types) and total; it never raises.
        It answers for the node as a Function of its own; what only a pattern would support is refused at compile.
        """

    @abc.abstractmethod
    def compile(self, function: Function, context: CompileContext) -> Executable:
        """Return an executable for a Function all of whose nodes `why_not` was silent about.

        Raises CompileRefused, with the reason, for what it can after all not take; XRT then places those nodes
        elsewhere. Any other exception is reported as CompileFailed, and the nodes are placed elsewhere too.
        """

    def version(self) -> str:
        """Return the versions of the engine and of the libraries it loads; part of the signature.

        The default is the installed version of the distribution that holds the class, ``"0"`` outside of any.
        """
        return _distribution_version(type(self).__module__)

    def unsupported_options(self, context: CompileContext) -> str | None:
        """Return which execution option the engine does not honour, and why; None when it honours all that are asked.

        The default honours only the defaults.
        """
        asked = context.options.unusual()
        if not asked:
            return None
        shown = ", ".join(f"{name}={value!r}" for name, value in asked.items())
        return f"engine {self.name!r} does not honour {shown}"

    def remarks(self, function: Function) -> tuple[str, ...]:
        """Return what a person should know of the engine's work on a function that it takes, one sentence each."""
        return ()

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        """Return the executable as bytes that `load` reads; raises CompileRefused, with the reason, where it cannot.

        It may write to ``context.workdir``, and return a file there as mapped memory. What is saved is data: it is kept,
        with checksums, for a later process on the same machine, or in a bundle for another one. XRT keeps the Function's
        constants apart; what refers to them instead of holding them stays small.
        """
        raise CompileRefused(f"engine {self.name!r} cannot save an executable")

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        """Return the executable that `save` wrote, not yet prepared.

        The Function is equal to the one that was compiled but for the names of inner values and nodes, and the order in
        which it lists its constants; engine, versions and context are the same. ``data`` is read-only, aligned to 64
        bytes, often a mapped file, and may be kept; ``context.workdir`` is gone when this returns.
        """
        raise CompileRefused(f"engine {self.name!r} cannot load an executable")

    @property
    def spec(self) -> str:
        """The engine as text: its name, and in braces the fields that differ from their defaults."""
        from xrt.engines.spec import spec_of

        return spec_of(self)

    def __str__(self) -> str:
        return self.spec


def _distribution_version(module: str) -> str:
    from importlib import metadata

    package = module.partition(".")[0]
    for distribution in metadata.packages_distributions().get(package, ()):
        return f"{distribution} {metadata.version(distribution)}"
    return "0"
