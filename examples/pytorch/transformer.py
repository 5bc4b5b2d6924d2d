"""Run a model of the library transformers on several engines, as an XRTModule and with torch.compile.

The model has random weights, so nothing is downloaded.
``pip install 'xrt-engine[ort,torch]' transformers``.
"""

import torch
from transformers import BertConfig, BertForSequenceClassification

import xrt


def main() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128, num_labels=3
    )
    model = BertForSequenceClassification(config).eval()
    inputs = {"input_ids": torch.randint(0, 1000, (2, 16)), "attention_mask": torch.ones(2, 16, dtype=torch.int64)}
    inputs["attention_mask"][1, 10:] = 0
    with torch.no_grad():
        expected = model(**inputs)

        module = xrt.XRTModule(model, engine=["ort", "toy"], pins=["name:bert.encoder.layer.1.*=toy"])
        result = module(**inputs)
        torch.testing.assert_close(result.logits, expected.logits, rtol=1e-4, atol=1e-5)
        print(f"XRTModule returns a {type(result).__name__} with what PyTorch computes")
        nodes = {name: sum(len(one.nodes) for one in module.plan.launches if one.engine == name) for name in ("ort", "toy")}
        print(", ".join(f"{count} nodes on {name}" for name, count in nodes.items()))

        compiled = torch.compile(model, backend="xrt", options={"engine": "ort"})
        torch.testing.assert_close(compiled(**inputs).logits, expected.logits, rtol=1e-4, atol=1e-5)
        print("torch.compile gives what PyTorch gives")


if __name__ == "__main__":
    main()
