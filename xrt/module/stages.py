"""One stage of a module's plan as a program: what a process of a pipeline compiles, of the weights of that stage alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from xrt.errors import InputError, PlanError
from xrt.formats.bundle import LATE_FROM
from xrt.runtime import compile_plan

if TYPE_CHECKING:
    from types import TracebackType

    from xrt.graph import Constant
    from xrt.module.module import XRTModule
    from xrt.partition import Stage
    from xrt.runtime import Program

__all__ = ["StageProgram", "compile_stage", "defer_weight_checks"]


def defer_weight_checks(module: XRTModule) -> None:
    """Let a module of a bundle, which has not read its model yet, read the weights of those stages alone that are compiled.

    To compare a checksum is to read a weight. `compile_stage` does it for a stage, where a module does it for all of the file.
    """
    if module._bundle is not None:
        module._bundle.defer_checks()


def compile_stage(module: XRTModule, stage: Stage) -> StageProgram:
    """Return a stage of the module's plan, compiled for the module's engines and threads through its cache.

    Raises PlanError where an engine refuses a part of a launch that it took as a whole, BundleError where a weight of the stage
    is damaged, and what a compile raises.
    """
    if module._bundle is not None:
        used = {id(constant): constant for launch in stage.plan.launches for constant in launch.function.constants.values()}
        module._bundle.check_weights(used.values(), _list_small_constants(module))
    made = compile_plan(stage.plan, module._engines.by_spec, module._engines.context, module._cache)
    if isinstance(made, tuple):
        reasons = "; ".join(f"{refusal.launch.name}: {refusal.reason}" for refusal in made)
        raise PlanError(f"a stage cannot be compiled as it was cut: {reasons}") from made[0].error
    return StageProgram(stage, made)


def _list_small_constants(module: XRTModule) -> set[Constant]:
    """Return the constants of the model itself that were checked when it was read; none for a graph with several traces."""
    with suppress(InputError):
        constants = module._source.get_declared_function().constants.values()
        return {constant for constant in constants if constant.nbytes < LATE_FROM}
    return set()


@dataclass(frozen=True)
class StageProgram:
    """A stage that can be run: values of the stage before in, values for the next one out."""

    stage: Stage
    program: Program

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Return what the stage sends, from what it receives; values that only pass are the same objects."""
        given = dict(zip(self.stage.received, values, strict=True))
        plan = self.stage.plan.function
        results = self.program.run([given[value.name] for value in plan.inputs])
        given |= dict(zip((value.name for value in plan.outputs), results, strict=True))
        return [given[name] for name in self.stage.sent]

    def close(self) -> None:
        """Release the executables."""
        self.program.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
