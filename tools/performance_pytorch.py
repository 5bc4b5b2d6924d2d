"""What `docs/performance.md` says of the benchmark `pytorch`."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.pytorch import OURS, find_worst, mean_over_eager
from tools.conformance_page import table
from tools.performance_sections import Figures, Verdict

__all__ = ["list_tables", "list_verdicts"]


def list_tables(figures: Figures) -> Iterator[str]:
    """Yield calls per state of MKL, then capture and dispatch."""
    for mkl, models in figures.get("calls", {}).items():
        ways = list(next(iter(models.values()))["seconds"])
        rows = [(name, *(f"{1e3 * row['seconds'][way]:.2f}" for way in ways)) for name, row in models.items()]
        yield f"Milliseconds per call, {mkl}:\n\n" + table(("model", *ways), rows)
    if "capture" in figures:
        rows = [
            (name, f"{row['torch.export']:.2f}", f"{row['from_torch']:.2f}", f"{row['from_torch'] - row['torch.export']:.2f}")
            for name, row in figures["capture"].items()
        ]
        yield "Seconds of capturing:\n\n" + table(("model", "torch.export alone", "from_torch", "lowering"), rows)
    if "dispatch" in figures:
        rows = [(way, f"{1e6 * seconds:.1f}") for way, seconds in figures["dispatch"].items()]
        yield "Microseconds of a call of `Linear(3, 3)`:\n\n" + table(("way", "microseconds"), rows)


def list_verdicts(figures: Figures) -> Iterator[Verdict]:
    """Yield the targets of the issue on PyTorch."""
    for mkl, models in figures.get("calls", {}).items():
        for way in OURS:
            worst, mean = find_worst(models, way), mean_over_eager(models, way)
            yield Verdict(
                f"{way} over the best of the others, {mkl}: {worst[0]}", "at least 0.98 x", f"{worst[1]:.2f} x", worst[1] >= 0.98
            )
            yield Verdict(f"{way} over eager, geometric mean, {mkl}", "at least 1.3 x", f"{mean:.2f} x", mean >= 1.3)
        if "bert" in models:
            found = 1 / models["bert"]["torch.compile"]["xrt"]["median"]
            yield Verdict(f"BERT-base by torch.compile over XRTModule, {mkl}", "at most 1.03 x", f"{found:.2f} x", found <= 1.03)
        if "resnet50" in models:
            found = 1e3 * models["resnet50"]["seconds"]["torch.compile"]
            yield Verdict(f"ResNet-50 by torch.compile, {mkl}", "at most 24 ms", f"{found:.1f} ms", found <= 24)
    if "bert" in figures.get("capture", {}):
        found = figures["capture"]["bert"]["from_torch"] - figures["capture"]["bert"]["torch.export"]
        yield Verdict("lowering BERT-base, without torch.export", "at most 0.3 s", f"{found:.2f} s", found <= 0.3)
    if "dispatch" in figures:
        found = 1e6 * figures["dispatch"]["torch.compile"]
        yield Verdict("`Linear(3, 3)` by torch.compile", "at most 18 us", f"{found:.1f} us", found <= 18)
    if "recompiles" in figures:
        count = figures["recompiles"]["by default"]
        yield Verdict("graphs compiled for batches of 4, 5, 6 and 7", "2", str(count), count <= 2)
    if "memory" in figures:
        found = figures["memory"]["xrt"]["peak"] / figures["memory"]["onnxruntime"]["peak"]
        yield Verdict("peak of BERT-base on `ort` over module and ONNX Runtime", "at most 1.1 x", f"{found:.2f} x", found <= 1.1)
