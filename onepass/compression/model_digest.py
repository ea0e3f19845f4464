"""Digests by which compressed files identify models."""

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from onepass.compression.container import digest_of
from onepass.foundation.model_folder import variable_names
from onepass.model import Autoregressive
from onepass.networks.condition_specs import zeros_for
from onepass.networks.reading import unusual_settings

_NUMBERED = re.compile(r"(.*?)(?:_([0-9]{1,18}))?")


def digest_of_network(network: tf.Module) -> bytes:
    """Return a 16-byte digest of the trainable weights of one of this library's networks."""
    named = zip(variable_names(network), network.trainable_variables, strict=True)
    return digest_of({name: variable.numpy() for name, variable in named})


def digests_of_model(model: Autoregressive) -> tuple[bytes, bytes]:
    """Return two digests of the variables that a model's output depends on, 16 bytes each.

    The first one covers names, types, shapes and values, including those of frozen variables and
    statistics, and also `start` and `input_scale` unless they are the defaults. It does not change
    if the model is stored and loaded, or if Keras created other layers before the model's. The
    second one, for files of format version 1, covers the trainable variables without their names.
    """
    traced = model.compiled.once("digested", lambda: _trace_network(model))
    weights = [variable.numpy() for variable in traced.trainable_variables]
    old = sorted(f"{w.dtype} {w.shape}".encode() + w.tobytes() for w in weights)
    names = rank_names(variable.name for variable in traced.variables)
    parts = sorted(
        f"{names[variable.name]} {variable.dtype.name} {list(variable.shape)}\n".encode()
        + variable.numpy().tobytes()
        for variable in traced.variables
    )
    if settings := unusual_settings(model.symbol_network):  # absent from earlier digests
        parts.append(json.dumps(settings, sort_keys=True).encode())
    own, first = (hashlib.sha256(b"".join(each)).digest()[:16] for each in (parts, old))
    return own, first


def rank_names(names: Iterable[str]) -> dict[str, str]:
    """Return a new name for each name, with the number that ends a path part replaced by its rank.

    Keras numbers layers by how many of their kind it has created before: in both {dense_3, dense_5}
    and {dense, dense_1}, the first layer gets rank 0 and the second rank 1.
    """
    paths = {name: name.split("/") for name in names}
    found = {name: "" for name in paths}
    for depth in range(max(map(len, paths.values()), default=0)):
        kinds: dict[tuple[str, str], set[int]] = {}
        parts = {}
        for name, path in paths.items():
            if depth < len(path):
                match = _NUMBERED.fullmatch(path[depth])
                stem, number = match.groups() if match else (path[depth], None)
                parts[name] = (found[name], stem), -1 if number is None else int(number)
                kinds.setdefault(parts[name][0], set()).add(parts[name][1])
        for name, (kind, number) in parts.items():
            found[name] = f"{kind[0]}/{kind[1]}#{sorted(kinds[kind]).index(number)}"
    return found


def _trace_network(model: Autoregressive) -> Any:
    network = model.symbol_network
    shape = [1, 4] if model.order == "time" else [1, 3, 3, network.inputs.shape[-1]]
    example: list[Any] = [tf.zeros(shape, tf.int32)]
    example += zeros_for(network, 1, [4] if model.order == "time" else [3, 3])
    return tf.function(network.parameters, autograph=False).get_concrete_function(*example)
