"""`from_torch`: a PyTorch network as a `tf.Module` that everything of onepass takes."""

from typing import Any

from onepass.foundation.rules import UserError
from onepass.networks.from_torch.network import TorchNetwork


def from_torch(
    module: Any,
    *,
    inputs: Any = None,
    conditions: Any = None,
    output: Any = None,
    one_hot: bool = False,
) -> TorchNetwork:
    """Return a PyTorch network as a `tf.Module`.

    It is exported by `torch.export` for any batch and length, in eval mode; the module itself stays
    as it is. Parameters become variables under the module's names, frozen where `requires_grad` is
    False; buffers become constants. An axis of channels before time, or before height and width,
    moves to the end.

    Args:
      module: a `torch.nn.Module` on the CPU, a `torch.export.ExportedProgram` or the path of a
        `.pt2` file that `torch.export.save` wrote.
      inputs: an example of the elements, such as torch.zeros(1, 8, dtype=torch.int64); only shape
        and dtype matter. Not needed for an exported program.
      conditions: examples of the other arguments of `forward`, by name. One whose number of entries
        is that of the time steps divided by a whole number becomes `Frames`.
      output: name or index of the output; by default the only one, or `logits`. Models of
        transformers are called with `use_cache=False`.
      one_hot: whether `inputs` are one-hot vectors of integers [batch, classes, time]. The network
        that is returned takes the integers, [batch, time].

    Returns:
      A network for `Autoregressive`, `incremental`, `check_causal` and all others. It declares
      its inputs and conditions.

    Raises:
      TypeError: `module` is none of these.
      ValueError: the module cannot be exported for any batch and length, has half-precision or
        quantised weights, or weights that are not on the CPU; or `inputs` do not fit it.
      UnsupportedNetworkError: an operation has no rule; `onepass.aten` registers one.
      UserError: torch is not installed; or TensorFlow was imported before torch, and torch's triton
        would end the process.
    """
    try:
        from onepass.networks.from_torch.export import export
    except ModuleNotFoundError as error:
        raise UserError(
            f'`from_torch` requires the package {error.name}: pip install "onepass[torch]".'
        ) from error
    graph = export(module, inputs=inputs, conditions=conditions, output=output, one_hot=one_hot)
    return TorchNetwork(graph)
