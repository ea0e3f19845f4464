"""Small networks of PyTorch: a causal convolution, attention, recurrent layers, masked images."""

import torch
import torch.nn.functional as F
from torch import nn

LEVELS, CHANNELS = 16, 8


class WaveNet(nn.Module):
    """Dilated convolutions of [batch, 1, time], written as strangers write them."""

    def __init__(self, parameters=3, condition=0, layers=3):
        super().__init__()
        self.front = nn.Conv1d(1, CHANNELS, 1)
        self.filters = nn.ModuleList(
            nn.Conv1d(CHANNELS, 2 * CHANNELS, 2, dilation=2**n) for n in range(layers)
        )
        self.skips = nn.ModuleList(nn.Conv1d(CHANNELS, CHANNELS, 1) for _ in range(layers))
        self.head = nn.Conv1d(CHANNELS, parameters, 1)
        self.local = nn.Conv1d(condition, CHANNELS, 1) if condition else None
        self.speaker = nn.Embedding(4, CHANNELS)

    def forward(self, x, mel=None, speaker=None):
        h, total = self.front(x), 0
        if mel is not None:
            h = h + self.local(mel) + self.speaker(speaker)[:, :, None]
        for layer, skip in zip(self.filters, self.skips, strict=True):
            value, gate = layer(F.pad(h, (layer.dilation[0], 0))).chunk(2, 1)
            y = torch.tanh(value) * torch.sigmoid(gate)
            h, total = h + skip(y), total + y
        return self.head(F.relu(total))


class GPT(nn.Module):
    """Two blocks of causal attention over tokens."""

    def __init__(self, length=128, heads=2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(LEVELS, CHANNELS), nn.Embedding(length, CHANNELS)
        self.heads, self.norm = heads, nn.LayerNorm(CHANNELS)
        self.queries = nn.ModuleList(nn.Linear(CHANNELS, 3 * CHANNELS) for _ in range(2))
        self.head = nn.Linear(CHANNELS, LEVELS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        batch, length = tokens.shape
        x = self.tokens(tokens) + self.places(torch.arange(length))
        for layer in self.queries:
            parts = layer(self.norm(x)).view(batch, length, 3, self.heads, -1)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + y.transpose(1, 2).reshape(batch, length, -1)
        return self.head(x)


class Recurrent(nn.Module):
    def __init__(self, kind=nn.GRU, **options):
        super().__init__()
        self.tokens = nn.Embedding(LEVELS, CHANNELS)
        self.layers = kind(CHANNELS, CHANNELS, 2, **options)
        ways = 2 if options.get("bidirectional") else 1
        self.head = nn.Linear(ways * CHANNELS, LEVELS)
        self.is_first = options.get("batch_first", False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        y = self.layers(x if self.is_first else x.transpose(0, 1))[0]
        return self.head(y if self.is_first else y.transpose(0, 1))


class Encoder(nn.Module):
    """A layer of `nn.TransformerEncoder`, causal by its mask or not at all."""

    def __init__(self, is_causal=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(CHANNELS, 2, 2 * CHANNELS, batch_first=True)
        self.tokens, self.is_causal = nn.Embedding(LEVELS, CHANNELS), is_causal
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(CHANNELS, LEVELS)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.tokens(tokens)
        return self.head(
            self.layers(x, mask=mask, is_causal=True) if self.is_causal else self.layers(x)
        )


class MaskedConv2d(nn.Conv2d):
    """A convolution that overwrites its weights, as PyTorch's PixelCNNs do."""

    def __init__(self, kind, *arguments, **options):
        super().__init__(*arguments, **options)
        self.register_buffer("mask", self.weight.data.clone())
        height, width = self.weight.shape[2:]
        self.mask.fill_(1)
        self.mask[:, :, height // 2, width // 2 + (kind == "B") :] = 0
        self.mask[:, :, height // 2 + 1 :] = 0

    def forward(self, x):
        self.weight.data *= self.mask
        return super().forward(x)


class PixelCNN(nn.Module):
    """Masked convolutions and batch normalisation over grey images [batch, 1, height, width]."""

    def __init__(self, levels=4):
        super().__init__()
        self.layers = nn.Sequential(
            MaskedConv2d("A", 1, CHANNELS, 3, padding=1, bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.ReLU(True),
            MaskedConv2d("B", CHANNELS, CHANNELS, 3, padding=1, bias=False),
            nn.ReLU(True),
            nn.Conv2d(CHANNELS, levels, 1),
        )

    def forward(self, x):
        return self.layers(x)


class Wrapped(nn.Module):
    """A module that returns what a function of it and its input returns."""

    def __init__(self, function, *layers):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x):
        return self.function(x, *self.layers)
