"""Write the stub files of xrt.ops from the schemas of the installed onnx."""

from __future__ import annotations

from pathlib import Path

from xrt.builder.ops.stubs import stub

OPS = Path(__file__).parents[1] / "xrt" / "builder" / "ops"


def main() -> None:
    """Write ``__init__.pyi`` and ``ml.pyi``."""
    (OPS / "__init__.pyi").write_text(stub(""), encoding="utf-8")
    (OPS / "ml.pyi").write_text(stub("ai.onnx.ml"), encoding="utf-8")


if __name__ == "__main__":
    main()
