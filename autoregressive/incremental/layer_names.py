"""Names of layers, for errors: what a user called them, from the names of operations."""

import re
from typing import Any

from autoregressive.incremental.replay import CALLS


def layer_names(network: Any) -> frozenset[str]:
    """Return the names of a Keras model's layers, those of nested models, too.

    network: of any kind; one that is no Keras model has no layers with names.
    """
    flatten = getattr(network, "_flatten_layers", None)
    return frozenset(layer.name for layer in flatten()) if flatten else frozenset()


def layer_of(operation: str, names: frozenset[str]) -> str:
    """Return the layer that an operation belongs to.

    Args:
      operation: its name in the graph, for example "functional_1/conv1d_3_1/Pad".
      names: of the layers that are known. Where none is in the operation's name, the scope that it
        was made in, or the operation itself.
    """
    scopes = [scope for scope in operation.split("/") if scope not in CALLS]
    for scope in reversed(scopes):
        # Keras opens a layer's scope twice, and the second one has a number added.
        for name in (re.sub(r"_\d+$", "", scope), scope):
            if name in names:
                return name
    return "/".join(scopes[:-1]) or operation
