"""Which engine, or which mixture, is the quickest on which kind of model?

The standing comparison: the shipped models on each engine and on the mixtures that may win, by ``xrt bench``, whose
options follow after ``--``.

    python benchmarks/compare_engines.py [--model MODEL]... [-- --threads 1,2 --rounds 30 --json]
"""

from __future__ import annotations

import argparse

from xrt.cli import main as xrt

MODELS = (
    "squeezenet",
    "resnet50",
    "inception_v1",
    "mobilenet",
    "bert{layers=2}",
    "gpt{layers=2, vocabulary=8192}",
    "vit{layers=2}",
    "dlrm",
    "unet",
    "speech",
    "detector",
    "mlp",
    "chain",
    "softmax_chain",
    "conv_tail",
    "gather_softmax",
    "reductions",
)
HEAVY = "Conv|Gemm|MatMul|Softmax|LayerNormalization|LRN"
CANDIDATES = ("toy", "ort", "tvm", f"tvm,ort with {HEAVY}=ort", "ort,tvm with LRN=tvm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help=f"a model, again for another (default: {', '.join(MODELS)})")
    parser.add_argument("options", nargs="*", help="options of xrt bench; with an -e among them, the candidates are those")
    arguments = parser.parse_args()
    options = arguments.options
    given = any(option.startswith(("-e", "--engine")) for option in options)
    candidates = [] if given else [word for candidate in CANDIDATES for word in ("-e", candidate)]
    xrt(["bench", *(arguments.model or MODELS), *candidates, *options])


if __name__ == "__main__":
    main()
