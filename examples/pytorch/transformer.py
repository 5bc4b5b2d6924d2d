"""A transformer encoder of PyTorch on several engines, as an XRTModule and by torch.compile; nothing is downloaded.

The same lines run a model of the library transformers, made from its configuration: ``pip install transformers``, then
``model = BertModel(BertConfig(num_hidden_layers=2)).eval()`` and ``inputs = {"input_ids": torch.randint(0, 1000, (2, 16))}``.
"""

import torch
from torch import nn

import xrt


class Encoder(nn.Module):
    """Tokens become vectors, then classes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 32)
        layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 3)

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.encoder(self.tokens(input_ids))
        return {"logits": self.head(hidden.mean(1)), "last_hidden_state": hidden}


def main() -> None:
    torch.manual_seed(0)
    model = Encoder().eval()
    inputs = {"input_ids": torch.randint(0, 100, (2, 16))}
    with torch.no_grad():
        expected = model(**inputs)

        module = xrt.XRTModule(model, engine=["ort", "toy"], pins=["name:encoder.layers.1.*=toy"])
        results = module(**inputs)
        for name, tensor in expected.items():
            torch.testing.assert_close(results[name], tensor, rtol=1e-4, atol=1e-5)
        print("XRTModule gives what PyTorch gives")
        print(f"{len(module.function.nodes)} nodes on {', '.join(sorted({launch.engine for launch in module.plan.launches}))}")

        compiled = torch.compile(model, backend="xrt", options={"engine": "ort"})
        torch.testing.assert_close(compiled(**inputs)["logits"], expected["logits"], rtol=1e-4, atol=1e-5)
        print("torch.compile gives what PyTorch gives")


if __name__ == "__main__":
    main()
