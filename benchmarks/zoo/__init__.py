"""Real architectures with random weights, exported to ONNX and run on every engine.

`build` exports the models, `run` runs them, `page` writes docs/zoo.md. The extra ``[zoo]`` installs what they need.
"""
