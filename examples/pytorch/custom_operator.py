"""A model with a custom operator, registered by torch.library. The operator runs on the engine `torch`, all others on `ort`."""

import torch
from torch import nn

import xrt


@torch.library.custom_op("example::clip_norm", mutates_args=())
def clip_norm(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Shorten rows that are longer than the limit."""
    return x * (limit / x.norm(dim=-1, keepdim=True)).clamp(max=1)


@clip_norm.register_fake
def _(x: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.empty_like(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(clip_norm(torch.relu(self.first(x)), 1.0))


def main() -> None:
    torch.manual_seed(0)
    model = Model().eval()
    x = torch.randn(3, 8)
    module = xrt.XRTModule(model, engine=["ort", "torch"], strict=True)
    torch.testing.assert_close(module(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    for launch in module.plan.launches:
        print(launch.engine, list(launch.nodes))
    for operator, reason in module.opaque.items():
        print(f"{operator}: {reason}")


if __name__ == "__main__":
    main()
