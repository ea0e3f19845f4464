"""Arguments of PyTorch's operations, drawn by hypothesis: dtypes, shapes, negative axes."""

import numpy as np
import torch

CASES = {}
FLOATS = (torch.float32, torch.float64)
NUMBERS = (*FLOATS, torch.int64, torch.int32)
ALL = (*NUMBERS, torch.bool, torch.uint8)


class Draw:
    """Draws arguments.

    Args:
      data: what `hypothesis.strategies.data` draws.
    """

    def __init__(self, data):
        from hypothesis import strategies

        self._data, self._st = data, strategies
        self._random = np.random.default_rng(self.whole(0, 1 << 20))

    def pick(self, *choices):
        return self._data.draw(self._st.sampled_from(choices))

    def whole(self, low, high):
        return self._data.draw(self._st.integers(low, high))

    def shape(self, low=1, high=3, least=1):
        return [self.whole(least, 4) for _ in range(self.whole(low, high))]

    def like(self, shape):
        """Return a shape that broadcasts with another one."""
        kept = shape[self.whole(0, len(shape)) :]
        return [self.pick(1, size) for size in kept]

    def axis(self, x, more=0):
        rank = x.dim() + more
        return self.whole(-rank, rank - 1)

    def axes(self, x):
        found = [n for n in range(x.dim()) if self.pick(True, False)] or [0]
        return [n - x.dim() if self.pick(True, False) else n for n in found]

    def tensor(self, shape=None, dtypes=FLOATS, low=-3.0, high=3.0):
        dtype = self.pick(*dtypes)
        values = self._random.uniform(low, high, self.shape() if shape is None else shape)
        if dtype == torch.bool:
            values = values > (low + high) / 2
        elif not dtype.is_floating_point:
            values = np.floor(np.abs(values) if dtype == torch.uint8 else values)
        return torch.tensor(np.asarray(values)).to(dtype)

    def index(self, size, shape, low=0):
        return torch.tensor(self._random.integers(low, size, shape))

    def order(self, count):
        """Return distinct numbers, in an order that is drawn."""
        return [int(n) for n in self._random.permutation(count)]

    def number(self):
        return self.pick(2, 0.3, -1.7, 3)


def case(*names, examples=4):
    """Register a function from a `Draw` to an operation's arguments, or to them and its options."""

    def add(function):
        CASES.update(dict.fromkeys(names, (function, examples)))
        return function

    return add
