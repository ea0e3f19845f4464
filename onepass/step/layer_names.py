"""Find the names of layers for error messages from the names of operations."""

import re
from typing import Any

from onepass.networks.trainable import layers_within
from onepass.step.replay import CALLS


def layer_names(network: Any) -> frozenset[str]:
    """Return the names of the Keras layers that a network contains, without its own."""
    roots = list(layers_within(network))
    layers = [each for root in roots for each in getattr(root, "_flatten_layers", list)()]
    return frozenset(each.name for each in layers if each is not network)


def layer_of(operation: str, names: frozenset[str]) -> str:
    """Return the name of the layer that an operation belongs to.

    Args:
      operation: name of the operation in the graph, for example "functional_1/conv1d_3_1/Pad".
      names: names of the known layers. If the operation's name contains none of them, its scope is
        returned, or its full name if it has no scope.
    """
    scopes = [scope for scope in operation.split("/") if scope not in CALLS]
    for scope in reversed(scopes):
        # Keras opens a layer's scope twice, and appends a number to the second one.
        for name in (re.sub(r"_\d+$", "", scope), scope):
            if name in names:
                return name
    return "/".join(scopes[:-1]) or operation
