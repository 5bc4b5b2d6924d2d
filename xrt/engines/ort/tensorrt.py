"""`TensorRT`: ONNX Runtime's TensorRT provider, as an engine of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from xrt.engines.contract.option_values import option
from xrt.engines.ort.cuda import why_not_present
from xrt.engines.ort.engine import Ort
from xrt.errors import EngineUnavailable, OptionError

if TYPE_CHECKING:
    from xrt.engines.contract.options import CompileContext
    from xrt.engines.ort.session import Provider

__all__ = ["TensorRT"]

PROVIDER = "TensorrtExecutionProvider"


@dataclass(frozen=True)
class TensorRT(Ort):
    """Compiles a Function with TensorRT where it can, and leaves to the CUDA provider what TensorRT does not take.

    It honours ``precision="fp16"`` and ``max_workspace_size``. Building takes seconds to minutes for a region; with
    `engine_cache` what was built is kept.
    """

    name: ClassVar[str] = "tensorrt"
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    on_device: ClassVar[str] = PROVIDER

    engine_cache: str = option("", names_files=True)
    """A directory in which TensorRT keeps built engines for later processes; empty keeps none."""
    min_subgraph_size: int = 1
    """A part of fewer nodes is left to the CUDA provider."""

    def __post_init__(self) -> None:
        """Check the fields; raises EngineUnavailable where the library was built without TensorRT."""
        super().__post_init__()
        least = self.min_subgraph_size
        if isinstance(least, bool) or not isinstance(least, int) or least < 1:
            raise OptionError(f"min_subgraph_size of engine 'tensorrt' must be a positive integer; got {least!r}")
        if reason := why_not_present(PROVIDER):
            raise EngineUnavailable(f"engine 'tensorrt' cannot serve: {reason}; TensorRT itself comes as 'tensorrt-cu13<11'")

    def unsupported_options(self, context: CompileContext) -> str | None:
        """Return which option is not honoured: fp16 and a limit of the workspace are."""
        asked = context.options.unusual()
        if context.options.precision not in ("fp32", "fp16") or "calibration_table" in asked:
            return f"engine 'tensorrt' computes in fp32 or fp16: it does not honour precision={context.options.precision!r}"
        return None

    def _device_providers(self, own: dict[str, str], context: CompileContext) -> list[Provider]:
        asked = {"trt_min_subgraph_size": str(self.min_subgraph_size)}
        if context.options.precision == "fp16":
            asked["trt_fp16_enable"] = "1"
        if context.options.max_workspace_size is not None:
            asked["trt_max_workspace_size"] = str(context.options.max_workspace_size)
        if self.engine_cache:
            asked |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": self.engine_cache}
        behind = super()._device_providers(own, context)
        return [(PROVIDER, {**self._options_of(PROVIDER), **asked, **own}), *behind]
