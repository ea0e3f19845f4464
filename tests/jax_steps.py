"""Training steps written in JAX, exported as those of TensorFlow are: a folder for run.py."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from onepass.replicator.portable.manifest import copy_runner

SLOTS = ("weights", "first", "second")
BATCHES = """import numpy as np

def open_batches(folder, settings):
    def batch(step):
        draws = np.random.default_rng(step)
        return {n: draws.normal(size=s).astype(np.float32) for n, s in settings.items()}
    return batch
"""


def export(folder, loss, weights, batch):
    """Writes a folder with an Adam step of a loss."""
    folder = Path(folder)
    names = [f"{kind}/{name}" for kind in SLOTS for name in weights]
    shapes = [weights[name] for _ in SLOTS for name in weights]
    step = _flat_step(loss, list(batch), names)
    arguments = [_shape(shape) for shape in [*batch.values(), *shapes]]
    artifact = jax.export.export(jax.jit(step, keep_unused=True))(
        *arguments, jax.ShapeDtypeStruct((), np.int32)
    )
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "step.stablehlo").write_bytes(artifact.mlir_module_serialized)
    np.savez(folder / "step.npz")
    slots = _described(dict(zip(names, shapes, strict=True)))
    slots.append({"name": "step", "shape": [], "dtype": "int32"})
    outputs = _described({"loss": ()}) + [
        {**slot, "name": f"slot/{slot['name']}"} for slot in slots
    ]
    described = {
        "artifact": "step.stablehlo", "weights": "step.npz", "inputs": _described(batch),
        "captured": slots, "outputs": outputs,
    }  # fmt: skip
    settings = {name: list(shape) for name, shape in batch.items()}
    training = {"step": "step", "num_steps": 5, "slots": slots, "batches": settings}
    manifest = {"format": 1, "functions": {"step": described}, "training": training}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "batches.py").write_text(BATCHES)
    copy_runner(folder)
    return folder


def save_checkpoint(folder, scale=0.2):
    """Step 0: normal weights of a small scale, moments of zeros."""
    slots = json.loads((folder / "manifest.json").read_text())["training"]["slots"]
    draws, arrays = np.random.default_rng(0), {}
    for slot in slots:
        values = draws.normal(0, scale, slot["shape"]) if slot["name"].startswith("w") else 0
        arrays[slot["name"]] = np.broadcast_to(values, slot["shape"]).astype(slot["dtype"])
    np.savez(folder / "checkpoints/step_00000000.npz", **arrays)
    return folder


def _flat_step(loss, batch, names):
    def step(*values):
        given = dict(zip([*batch, *names, "step"], values, strict=True))
        weights = {n.partition("/")[2]: given[n] for n in names if n.startswith("weights/")}
        value, gradients = jax.value_and_grad(loss)(weights, {n: given[n] for n in batch})
        made = {}
        for name, gradient in gradients.items():
            first = 0.9 * given[f"first/{name}"] + 0.1 * gradient
            second = 0.99 * given[f"second/{name}"] + 0.01 * gradient**2
            made[f"weights/{name}"] = weights[name] - 0.01 * first / (jnp.sqrt(second) + 1e-3)
            made[f"first/{name}"], made[f"second/{name}"] = first, second
        return [value, *(made[name] for name in names), given["step"] + 1]

    return step


def _shape(shape):
    return jax.ShapeDtypeStruct(shape, np.float32)


def _described(shapes):
    return [{"name": n, "shape": list(s), "dtype": "float32"} for n, s in shapes.items()]


def perceptron(weights, batch):
    """Two matrices, `up` and `down`."""
    hidden = jnp.tanh(batch["x"] @ weights["up"])
    return jnp.mean((hidden @ weights["down"] - batch["y"]) ** 2)


def transformer(blocks, heads=4):
    """Blocks of attention and a hidden layer, normalised before; mean square error."""

    def loss(weights, batch):
        x = batch["x"]
        for i in range(blocks):
            prefix = f"block_{i}/"
            own = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
            x = _hidden_layer(own, _attention(own, x, heads))
        return jnp.mean((x - batch["y"]) ** 2)

    return loss


def transformer_weights(blocks, width, hidden):
    square = dict.fromkeys(("query", "key", "value", "out"), (width, width))
    biases = dict.fromkeys(("query_bias", "out_bias", "norm", "hidden_norm"), (width,))
    block = {**square, **biases, "up": (width, hidden), "up_bias": (hidden,)}
    block["down"] = (hidden, width)
    return {f"block_{i}/{name}": shape for i in range(blocks) for name, shape in block.items()}


def _attention(own, x, heads):
    batch, time, width = x.shape
    y = _normalised(x, own["norm"])

    def split(name, bias=0.0):
        projected = (y @ own[name] + bias).reshape(batch, time, heads, width // heads)
        return projected.transpose(0, 2, 1, 3)

    query, key, value = split("query", own["query_bias"]), split("key"), split("value")
    scores = jax.nn.softmax(query @ key.transpose(0, 1, 3, 2) / heads, -1)
    mixed = (scores @ value).transpose(0, 2, 1, 3).reshape(batch, time, width)
    return x + mixed @ own["out"] + own["out_bias"]


def _hidden_layer(own, x):
    y = _normalised(x, own["hidden_norm"])
    return x + jnp.tanh(y @ own["up"] + own["up_bias"]) @ own["down"]


def _normalised(x, scale):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


VGG_16 = (64, 64, "pool", 128, 128, "pool", 256, 256, 256, "pool", 512, 512, 512, "pool",
          512, 512, 512, "pool")  # fmt: skip


def vgg_16_weights(side=224, classes=1000):
    """Shapes by name: 13 convolutions and 3 dense layers (Simonyan and Zisserman 2015)."""
    shapes, channels = {}, 3
    for i, width in enumerate(VGG_16):
        if width == "pool":
            side //= 2
        else:
            shapes[f"convolution_{i}"] = (3, 3, channels, width)
            channels = width
    sizes = (side * side * channels, 4096, 4096, classes)
    return shapes | {f"dense_{i}": sizes[i : i + 2] for i in range(3)}


def vgg_16(weights, batch):
    x = batch["x"]
    for i, width in enumerate(VGG_16):
        if width == "pool":
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        else:
            dimensions = ("NHWC", "HWIO", "NHWC")
            kernel = weights[f"convolution_{i}"]
            x = jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME",
                                                         dimension_numbers=dimensions))  # fmt: skip
    x = x.reshape(x.shape[0], -1)
    for i in range(3):
        x = x @ weights[f"dense_{i}"]
        x = jax.nn.relu(x) if i < 2 else x
    return jnp.mean((x - batch["y"]) ** 2)
