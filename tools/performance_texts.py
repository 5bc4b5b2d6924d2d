"""What `docs/performance.md` says in words: each benchmark's question, how it is measured, and what may surprise."""

from __future__ import annotations

from tools import (
    performance_auto as auto_told,
    performance_precision as precision,
    performance_pytorch as pytorch,
    performance_sections as told,
)
from tools.performance_sections import Section

SECTIONS = {
    "dispatch": Section(
        "The cost of a call",
        "What does XRT cost on top of an engine's own call?",
        "The module's call by position (*module*), by name (*named*), into the caller's buffer (*out*) and with arrays "
        "that were bound once (*bound*: `m.bind`) takes turns with the engine's own. For `toy` the engine's own is the "
        "same thing written by hand, `np.maximum(x, 0)`; for `tvm` it is the virtual machine's, one for each thread.",
        told.dispatch_tables,
        told.dispatch_verdicts,
        "What a prepared call adds is the comparison of type, element type and shape of each input. Small inputs and "
        "outputs of `ort` go through arrays that were bound once, which is quicker than handing them over.",
    ),
    "regions": Section(
        "The cost of a cut",
        "What does it cost to cut a model into regions?",
        "16 blocks of convolution, Relu and addition in 2, 4, 8 and 16 regions of `ort`, and with the convolutions on "
        "`ort` and the rest on `tvm` or `toy`. The call takes turns with each region called alone, whose times are added "
        "up, and with the model in one region of `ort`. What the regions alone take longer than the model in one is lost "
        "fusion, and for other engines their own speed; only the rest is the cut's cost. Idle CPU is the processor time "
        "of the process in a second without work afterwards. For every pair of engines, four regions of a kind take turns "
        "with each of them alone; 20 us per boundary are free. There, the first figure is the ratio of the best times, "
        "which what else the machine does cannot lengthen, and the median of the rounds follows in brackets. The last is the "
        "ratio to the same regions called one after the other by hand, each on the result of the one before: it has no part "
        "in what engines cost each other. A kind is a "
        "chain of eight elementwise operators, Softmax, LayerNormalization or a product on 512x512, or a convolution of 32 "
        "channels on 64x64. On more than one thread a region of another engine has to wake the threads of its pool, which "
        "a region that is called again and again finds awake, and its data are in caches of other cores or further away.",
        told.regions_tables,
        told.regions_verdicts,
    ),
    "memory": Section(
        "Memory",
        "How much memory does XRT take on top of an engine?",
        "An embedding and products, read from a file, compiled and run once, in a fresh process each: the most that was "
        "ever resident (VmHWM), imports included, one process per figure. `toy` alone is the same in NumPy by hand, over "
        "what the `onnx` package reads.",
        told.memory_tables,
        told.memory_verdicts,
        "*Packed* is what the engine holds of its own, as `m.memory()` tells it: `ort` packs the weights of products, alone as "
        "well. The target leaves it out, but only on XRT's side: the engine alone counts with it. *All told* is the stricter "
        "comparison, with everything on both sides. Alone, `ort` lets go of each external weight that it has packed; XRT keeps "
        "the file mapped, because other regions and signatures read it, and while the library packs, the pages that it has read "
        "are resident too. They are clean, and let go when the region is compiled: more regions mean a lower peak.",
    ),
    "partition": Section(
        "Partitioning",
        "How long does it take to partition and fold a model?",
        "Capability, clustering and folding together, as processor time of the one thread that they use; a tenth of the "
        "nodes is not supported by the first engine.",
        told.partition_tables,
        told.partition_verdicts,
    ),
    "auto": Section(
        "Placement by measurement",
        'Does `engine="auto"` find the quickest engine, or a mixture that is quicker than each?',
        "On every shipped model auto searches within its budget, in a process of its own. In a fresh one it then takes "
        "turns, from what it has kept, with every single engine that is ready here; the first call of each turn is not "
        "counted. Gains are medians of the ratios within rounds, with 95 % intervals by bootstrap over the rounds in brackets. "
        "A win or a loss is what excludes 1 and is beyond 1 %; all else is a tie, but *same* is where auto chose that very "
        "engine. The best single engine is the one with the least median of this very run, which favours the engines.",
        auto_told.auto_tables,
        auto_told.auto_verdicts,
        "Where auto chose the best single engine, both run the same executable, and the gain shows the noise of the machine.",
    ),
    "imports": Section(
        "Imports",
        "How long does `import xrt` take?",
        "Fresh processes that take turns; the difference to `import numpy` within a round. *First use* is that of "
        "`XRTModule` and `xrt.ops`, which brings `onnx`.",
        told.imports_tables,
        told.imports_verdicts,
    ),
    "pytorch": Section(
        "PyTorch",
        "How long does a call of a network of PyTorch take, in each of the ways that there are?",
        "BERT-base with 128 tokens, GPT-2 with 64, ConvNeXt, ResNet-50 and ViT with an image, an LSTM with 8 sequences of 50 "
        "steps: built from their configurations with random weights, one process each. All ways take turns with the same "
        "threads. ONNX Runtime runs what `torch.onnx.export` writes, OpenVINO what its converter makes of the module; Inductor "
        "is as it is by default, and frozen, images with channels last. XRT is `XRTModule(module)` and the backend of "
        '`torch.compile` with `freeze`, both with `engine="auto"`.',
        pytorch.list_tables,
        pytorch.list_verdicts,
        "PyTorch's MKL takes a slow path on processors that are not Intel's. So everything is measured a second time with its "
        "check answered with yes. Under `torch.compile` recurrent layers run eagerly unless `torch._dynamo.config.allow_rnn` is "
        "set: it is set here, for Inductor too.",
    ),
    "precision": Section(
        "Lower precision",
        "How fast are lower precisions, and what does auto make of a budget of error or of accuracy?",
        "BERT-base, GPT-2 with six layers, ConvNeXt-T and MobileNet v2 with random weights whose activations are live; "
        "*gpt_hard* is the same function with a few channels 40 times as large. *Images* and *texts* are small "
        "classifiers, trained on data that code makes; the *hard* ones have such channels too. Each model has a process, "
        "in which all candidates take turns. Errors and accuracies are of 64 examples (batches, of the classifiers) that "
        "were neither calibrated nor validated on. *Alone* is a library's own session. ONNX Runtime's `quantize_static` "
        "and NNCF's `quantize_with_accuracy_control` get the examples that auto gets.",
        precision.list_tables,
        precision.list_verdicts,
        "Errors of models of random weights are of outputs, and say nothing of an accuracy. OpenVINO takes bf16 where it "
        "is not asked for float32: that is *default hint*. Where answers to a quantized model differ from the library's, "
        "those of the reference engine say which are nearer to ONNX. Seconds to find are those of auto's whole search, the "
        "exact one included, and of "
        "the other tools without imports and without reading the model.",
    ),
}
