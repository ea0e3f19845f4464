"""A one-pass student of a PyTorch WaveNet: `python -m examples.torch_teacher`."""

import time

import torch
import tyro
from torch import nn

import onepass


class WaveNet(nn.Module):
    """Gated, dilated convolutions from [batch, 1, time] to mean and log-scale [batch, 2, time]."""

    def __init__(self):
        super().__init__()
        self.front, self.head = nn.Conv1d(1, 32, 1), nn.Conv1d(32, 2, 1)
        self.layers = nn.ModuleList(nn.Conv1d(32, 64, 2, dilation=2**n) for n in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return mean and log-scale of every element, given those before it and itself."""
        h = self.front(x)
        for n, layer in enumerate(self.layers):
            values, gates = layer(nn.functional.pad(h, (2**n, 0))).chunk(2, 1)
            h = h + torch.tanh(values) * torch.sigmoid(gates)
        return self.head(h)


def main(steps: int = 1000, length: int = 800) -> None:
    """Train a teacher, distil it, and time both.

    Args:
      steps: updates of each.
      length: elements of a recording and of a sample.
    """
    draws = torch.Generator().manual_seed(0)
    phase = 6.3 * torch.rand(64, 1, generator=draws) + 0.2 * torch.arange(length)
    tones = 0.5 * torch.sin(phase) + 0.02 * torch.randn(64, length, generator=draws)
    module = WaveNet()
    adam = torch.optim.Adam(module.parameters(), 1e-3)
    for _ in range(steps):
        rows = tones[torch.randint(64, [16], generator=draws)]
        mean, log_scale = module(nn.functional.pad(rows[:, None, :-1], (1, 0))).unbind(1)
        loss = -torch.distributions.Normal(mean, log_scale.exp()).log_prob(rows).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    network = onepass.from_torch(module, inputs=torch.zeros(1, 1, length))
    teacher = onepass.Autoregressive(network, onepass.likelihoods.Gaussian())
    student = onepass.distill(teacher, tones.numpy(), steps=steps)
    for name, model in (("teacher", teacher), ("student", student)):
        sound = model.sample(1, length, seed=1)
        start = time.monotonic()
        model.sample(1, length, seed=2)
        print(f"{name}: {sound.std():.3f}, {length / (time.monotonic() - start):,.0f} elements/s")


if __name__ == "__main__":
    tyro.cli(main)
