"""Small models of users, and bundles of them, made once."""

import contextlib
import functools
import json
import shutil
import tempfile
from pathlib import Path

import attention_networks
import causal_networks
import keras
import made_once
import numpy as np
import tensorflow as tf

import onepass
import serving
from distill.any_teacher import flow_student
from examples.own_distribution import LEVELS, Laplace
from onepass import likelihoods
from onepass.bundles.manifest import write_manifest
from onepass.models import load

LONGEST, RATE_HZ = 70, 4000
SHAPE = (4, 4, 1)
NUM, SEED = 2, 2**63 + 5  # beyond int64, as seeds may be


def gru(num_parameters):
    """A recurrent network as users write them."""
    keras.utils.set_random_seed(1)
    stack = [keras.Input([None, 1]), keras.layers.GRU(4, return_sequences=True)]
    return keras.Sequential([*stack, keras.layers.Dense(num_parameters)])


class Pairs(tf.Module):
    """A network that sees the element and the one before it."""

    def __init__(self, num_parameters):
        super().__init__()
        self.kernel = causal_networks.variable([2, num_parameters], 3)
        self.bias = causal_networks.variable([num_parameters], 4)

    def __call__(self, x):
        before = tf.pad(x, [[0, 0], [1, 0], [0, 0]])[:, :-1]
        return tf.tanh(tf.tensordot(tf.concat([x, before], -1), self.kernel, 1) + self.bias)


VOICES, ENTRIES = 4, 5
VOICED = {
    "voice": tf.TensorSpec([None], tf.int32),
    "tone": tf.TensorSpec([None, 3]),
    "mel": tf.TensorSpec([None, None, 2]),
}


class Voices(tf.Module):
    """A network of sound with a class, a vector, and a condition at the rate of the elements."""

    def __init__(self):
        super().__init__()
        self.voices = causal_networks.variable([VOICES, 6], 5)
        self.tones = causal_networks.variable([3, 6], 6)
        self.mels = causal_networks.variable([2, 6], 7)
        self.head = causal_networks.variable([6, 2], 8)

    def __call__(self, x, voice, tone, mel):
        before = tf.pad(x, [[0, 0], [1, 0], [0, 0]])[:, :-1]
        h = tf.gather(self.voices, voice) + tf.matmul(tone, self.tones)
        h = tf.tanh(x - 0.5 * before + h[:, tf.newaxis] + tf.tensordot(mel, self.mels, 1))
        return tf.tensordot(h, self.head, 1)


class Framed(tf.Module):
    """A network of sound with a condition at the rate of the elements alone."""

    def __init__(self):
        super().__init__()
        self.pairs, self.frames = Pairs(2), causal_networks.variable([2, 2], 5)

    def __call__(self, x, frames):
        return self.pairs(x) + tf.tensordot(frames, self.frames, 1)


class Reading(tf.Module):
    """A network of tokens that attends to a memory."""

    def __init__(self, count):
        super().__init__()
        self.tokens = causal_networks.variable([count, 6], 5)
        self.keys = causal_networks.variable([3, 6], 6)
        self.head = causal_networks.variable([6, count], 7)

    def __call__(self, tokens, memory):
        h = tf.gather(self.tokens, tokens)
        h = tf.tanh(h + tf.pad(h, [[0, 0], [1, 0], [0, 0]])[:, :-1])
        keys = tf.tensordot(memory, self.keys, 1)
        h += tf.matmul(tf.nn.softmax(tf.matmul(h, keys, transpose_b=True)), keys)
        return 3.0 * tf.tensordot(h, self.head, 1)


class Masked(tf.Module):
    """An image network that sees the pixel to the left and the one above."""

    def __init__(self, num_parameters):
        super().__init__()
        self.kernel = causal_networks.variable([2, num_parameters], 3)
        self.bias = causal_networks.variable([num_parameters], 4)

    def __call__(self, x):
        left = tf.pad(x, [[0, 0], [0, 0], [1, 0], [0, 0]])[:, :, :-1]
        above = tf.pad(x, [[0, 0], [1, 0], [0, 0], [0, 0]])[:, :-1]
        return tf.tensordot(tf.concat([left, above], -1), self.kernel, 1) + self.bias


class Classes(Masked):
    """The same with a class."""

    def __init__(self, num_parameters):
        super().__init__(num_parameters)
        self.classes = causal_networks.variable([VOICES, num_parameters], 5)

    def __call__(self, x, label):
        return super().__call__(x) + tf.gather(self.classes, label)[:, tf.newaxis, tf.newaxis]


def mixture(levels):
    return likelihoods.LogisticMixture(levels=levels, components=2)


def images(levels):
    return onepass.Autoregressive(Masked(6), mixture(levels), order="raster")


MAKERS = {
    "own": lambda: onepass.Autoregressive(gru(2), Laplace()),
    "pairs": lambda: onepass.Autoregressive(Pairs(2), Laplace()),
    "sound": lambda: onepass.Autoregressive(Pairs(6), mixture(65536)),
    "conditioned": lambda: onepass.Autoregressive(
        causal_networks.two_inputs(), likelihoods.Gaussian(levels=LEVELS)
    ),
    "framed": lambda: onepass.Autoregressive(
        Framed(), likelihoods.Gaussian(levels=LEVELS), conditions=tf.TensorSpec([None, None, 2])
    ),
    "real": lambda: onepass.Autoregressive(
        Pairs(2), likelihoods.Gaussian(levels=None), codec=likelihoods.Reals(20.0, 3.0)
    ),
    "picture": lambda: images(256),
    "deep": lambda: images(4096),
    "attention": lambda: onepass.Autoregressive(
        causal_networks.skewed_attention(4, 4),
        likelihoods.Categorical(4),
        codec=likelihoods.Linear(4),
    ),
    "tokens": lambda: onepass.Autoregressive(
        attention_networks.Rotary(),
        likelihoods.Categorical(attention_networks.TOKENS),
        codec=likelihoods.Integers(attention_networks.TOKENS),
        inputs=attention_networks.SPEC,
    ),
    "long": lambda: model("tokens"),
    "tiles": lambda: onepass.Autoregressive(Masked(4), likelihoods.Categorical(4), order="raster"),
    "voices": lambda: onepass.Autoregressive(
        Voices(), likelihoods.Gaussian(levels=LEVELS), conditions=VOICED
    ),
    "reading": lambda: onepass.Autoregressive(
        Reading(attention_networks.TOKENS),
        likelihoods.Categorical(attention_networks.TOKENS),
        inputs=attention_networks.SPEC,
        conditions=onepass.Memory([None, None, 3]),
    ),
    "classes": lambda: onepass.Autoregressive(
        Classes(6), mixture(256), order="raster", conditions=tf.TensorSpec([None], tf.int32)
    ),
    "student": lambda: flow_student(model("real"), num_flows=2, channels=4),
}
LENGTHS = {"picture": SHAPE, "classes": SHAPE, "deep": SHAPE, "tiles": SHAPE, "long": 600}


@functools.cache
def model(name):
    """Return a model, whose weights are the same in every process."""
    keras.utils.set_random_seed(1)
    return MAKERS[name]()


def length(name):
    return LENGTHS.get(name, LONGEST)


def tokens(*shape, levels=attention_networks.TOKENS, seed=1):
    return np.random.default_rng(seed).integers(0, levels, shape)


def rows_of(*counts, levels=attention_networks.TOKENS):
    """Rows of tokens of these lengths."""
    return [tokens(count, levels=levels, seed=count) for count in counts]


def rows_of_condition(given, which):
    """The conditions of some rows."""
    if isinstance(given, dict):
        return {name: value[which] for name, value in given.items()}
    return given[which]


def row_of(options, row):
    """The options of one row."""
    return {
        key: value[row : row + 1]
        if key in ("prefix", "temperature") and isinstance(value, list)
        else value
        for key, value in options.items()
    }


def ran(*words):
    """The exit status of the command."""
    return onepass.main([str(word) for word in words])


def condition(name):
    if name not in ("conditioned", "framed"):
        return ()
    return (np.random.default_rng(3).normal(size=[NUM, LONGEST, 2]).astype(np.float32),)


@functools.cache
def drawn(name):
    return model(name).sample(NUM, length(name), SEED, *condition(name))


def saved_folder(name) -> Path:
    """The folder of a saved model, which is read and never written."""
    options = {"sample_rate_hz": RATE_HZ} if name == "sound" else {}
    return made_once.once(f"saved/{name}", lambda path: onepass.save(model(name), path, **options))


@functools.cache
def loaded(place: Path):
    """The model of a folder, loaded once, so that its programs are compiled once."""
    return load(place)


def load_once(place):
    """Stands in for `onepass.models.load` in tests of many commands."""
    return load(place) if "://" in str(place) else loaded(Path(place))


def places(name, url):
    """Return where a model is: saved, as a bundle, and at the address of a server."""
    return saved_folder(name), bundle_folder(name), f"{url}/{name}"


@functools.cache
def bundle_folder(name) -> Path:
    def make(path):
        rate_hz = RATE_HZ if name == "sound" else None
        longest = None if name == "sound" else length(name)
        options = {"entries": ENTRIES} if name == "reading" else {}
        options |= {"length": longest, "sample_rate_hz": rate_hz}
        onepass.export(model(name), path, **options)

    return made_once.once(f"own/{name}/1", make)


def changed_bundle(folder, name, change) -> Path:
    """A copy of a bundle, of which `change` edits what model.json says."""
    made = Path(shutil.copytree(bundle_folder(name), folder / "changed" / name / "1"))
    spec = json.loads((made / "model.json").read_text())
    change(spec)
    (made / "model.json").write_text(json.dumps(spec))
    write_manifest(made)
    return made


@functools.cache
def bundle(name):
    return serving.load(bundle_folder(name))


class Store:
    """A folder of models as `http_running` and `grpc_running` take one."""

    def __init__(self, *names):
        self.root = Path(tempfile.mkdtemp(dir=made_once.own_folder()))
        for name in names:
            shutil.copytree(bundle_folder(name), self.root / name / "1")

    def load(self, path, *rest, **named):
        return bundle(Path(path).parent.name)


@contextlib.contextmanager
def served(protocol, *names):
    """The address of a server in this process, and its models, asked over http or grpc."""
    import grpc_running
    import http_running

    from onepass.remote_model import RemoteModel

    running = (http_running if protocol == "http" else grpc_running).Running
    with running(Store(*names)) as server, contextlib.ExitStack() as remotes:
        url = server.url if protocol == "http" else f"grpc://{server.address}"
        made = [RemoteModel(f"{url}/{name}") for name in names]
        for remote in made:
            remotes.callback(remote.close)
        yield url, made
