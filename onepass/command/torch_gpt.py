"""A small GPT of PyTorch that the quickstart draws with: `python -m onepass.command.torch_gpt`.

It runs in a process of its own, since TensorFlow must not be imported before torch.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from onepass.networks.from_torch.export import export
from onepass.networks.from_torch.graph import write_folder

WIDTH, HEADS, LAYERS = 64, 4, 2


class GPT(nn.Module):
    """Causal attention and dense layers over tokens, with learned positions."""

    def __init__(self, vocabulary: int, length: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(length, WIDTH)
        nn.init.normal_(self.positions.weight, std=3.0)  # or it draws one token again and again
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * LAYERS))
        self.attention = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.wide = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(LAYERS))
        self.narrow = nn.ModuleList(nn.Linear(4 * WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits [batch, time, vocabulary] of tokens int64 [batch, time]."""
        batch, length = tokens.shape
        h = self.tokens(tokens) + self.positions(torch.arange(length))
        for layer in range(LAYERS):
            read = self.attention[layer](self.norms[2 * layer](h))
            parts = read.view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            query, key, value = parts
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            h = h + mixed.transpose(1, 2).reshape(batch, length, WIDTH)
            h = h + self.narrow[layer](F.gelu(self.wide[layer](self.norms[2 * layer + 1](h))))
        return self.head(h)


def draw_tokens(module: nn.Module, start: int, count: int) -> list[int]:
    """Return the most probable tokens after `start`, by a call of the whole network for each."""
    tokens = torch.tensor([[start]])
    with torch.no_grad():
        for _ in range(count):
            last = module(tokens)[:, -1:].argmax(-1)
            tokens = torch.cat([tokens, last], 1)
    return tokens[0, 1:].tolist()


def main(folder: Path, vocabulary: int, length: int) -> None:
    """Write the network and drawn.json, `{"tokens", "seconds"}` of PyTorch's own draw, to a folder.

    The first token that is read is the middle one of the vocabulary.
    """
    torch.set_num_threads(1)  # faster for matrices this small, and steadier on busy cores
    torch.manual_seed(0)
    module, example = GPT(vocabulary, length), torch.zeros(1, 8, dtype=torch.int64)
    write_folder(export(module, inputs=example), folder / "network")
    module.eval()
    draw_tokens(module, vocabulary // 2, 8)
    start = time.perf_counter()
    tokens = draw_tokens(module, vocabulary // 2, length)
    drawn = {"tokens": tokens, "seconds": time.perf_counter() - start}
    (folder / "drawn.json").write_text(json.dumps(drawn), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
