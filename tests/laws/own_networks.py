"""Networks of every kind that users bring, and what is asked of them."""

import functools

import attention_networks
import causal_networks
import indexing_networks
import keras
import numpy as np
import one_length_networks
import tensorflow as tf
from attention_networks import SPEC, TOKENS

import onepass
from examples.own_distribution import Laplace
from onepass.likelihoods import Categorical, Gaussian, Integers, LogisticMixture
from onepass.likelihoods.codec import Linear, MuLaw, Reals
from onepass.model import Autoregressive

layers = keras.layers
NUM = 3
CODES = 5
FORBIDDEN = [0, 3]
RANDOM = np.random.default_rng(0)


def of_tokens(network):
    return Autoregressive(network, Categorical(TOKENS), codec=Integers(TOKENS), inputs=SPEC)


def of_float64(distribution, **options):
    channels = options.get("condition_channels", 0)
    network = causal_networks.Dilated(distribution.num_parameters, channels)
    return Autoregressive(network, distribution, inputs=causal_networks.FLOAT64, **options)


def with_conditions(*kinds):
    network = causal_networks.conditioned(*kinds)
    return Autoregressive(network, Categorical(8), codec=Integers(8))


def with_frames():
    """A model whose network computes its frames, which look ahead, once."""
    spec = onepass.Frames([None, None, causal_networks.BANDS], hop=causal_networks.HOP)
    return Autoregressive(causal_networks.vocoder(), Gaussian(256), conditions={"mel": spec})


def with_integers(axes):
    """A model whose condition at every time is an integer, with or without an axis of channels."""
    waves, kinds = keras.Input([None, 1]), keras.Input([None, 1][: axes - 1], dtype="int32")
    h = layers.Embedding(5, 3)(kinds)
    h = layers.Concatenate()([waves, h if axes == 2 else layers.Reshape([-1, 3])(h)])
    network = keras.Model([waves, kinds], layers.Dense(2)(h))
    return Autoregressive(network, Gaussian(16), start=0.25)


def with_start():
    """A model of tokens that reads one that is never drawn before the first."""
    inputs = keras.Input([None], dtype="int32")
    h = layers.Conv1D(3, 3, padding="causal")(layers.Embedding(7, 3)(inputs))
    network = keras.Model(inputs, layers.Dense(6)(h))
    return Autoregressive(network, Categorical(6), start=6)


class Experts(layers.Layer):
    """A mixture of experts, of which every time step gathers the best."""

    def build(self, shape):
        self.route = self.add_weight(shape=(shape[-1], 3))
        self.kernel = self.add_weight(shape=(3, shape[-1], shape[-1]))

    def call(self, h):
        shares = tf.nn.softmax(tf.tensordot(h, self.route, 1))
        best = tf.argmax(shares, -1)[..., None]
        every = tf.einsum("btc,ecd->bted", h, self.kernel)
        return tf.gather(every, best, batch_dims=2)[..., 0, :]


def of_scan():
    """A model of an associative scan."""
    scan = indexing_networks.associative_scan()
    return Autoregressive(lambda x: scan(tf.tile(x, [1, 1, 4]))[..., :2], Gaussian(256))


def of_layer(layer, hidden=()):
    """A model of tokens with a layer, whose logits forbid some of the tokens."""
    inputs = keras.Input([None], dtype="int32")
    h = layers.Conv1D(8, 2, padding="causal", activation="tanh")(layers.Embedding(7, 8)(inputs))
    logits = layers.Dense(7, kernel_initializer="random_normal")(h + layer(h))
    mask = np.where(np.isin(np.arange(7), hidden), -np.inf, 0.0).astype("float32")
    return Autoregressive(keras.Model(inputs, logits + mask), Categorical(7))


def of_one_length(name):
    """A model of a network that was built for 20 elements."""
    network = getattr(one_length_networks, name)()
    inputs = {"subclassed": SPEC, "Subclassed": tf.TensorSpec([None, 20], tf.int32)}.get(name)
    levels = one_length_networks.LEVELS
    codec = Linear(levels) if name == "conditioned" else Integers(levels)
    return Autoregressive(network, Categorical(levels), codec=codec, inputs=inputs)


def of_images(channels, **options):
    distribution = LogisticMixture(levels=4096, components=2)
    network = causal_networks.MaskedImage(channels, channels * distribution.num_parameters)
    inputs = tf.TensorSpec([None, None, None, channels])
    return Autoregressive(network, distribution, order="raster", inputs=inputs, **options)


MODELS = {
    "rotary": lambda: of_tokens(attention_networks.Rotary()),
    "mini gpt": lambda: of_tokens(attention_networks.mini_gpt()),
    "windowed": lambda: of_tokens(attention_networks.Windowed()),
    "linear": lambda: of_tokens(attention_networks.Linear()),
    "mixture": lambda: of_float64(LogisticMixture(levels=256, components=3)),
    "mu-law": lambda: of_float64(Categorical(16), codec=MuLaw(16), condition_channels=2),
    "embedding": lambda: Autoregressive(
        causal_networks.embedding_of(8), Categorical(8), codec=MuLaw(8)
    ),
    "own distribution": lambda: Autoregressive(causal_networks.Gated(2), Laplace()),
    "recurrent": lambda: Autoregressive(causal_networks.lstm_after_convolution(), Gaussian(None)),
    "start": with_start,
    "scale": lambda: Autoregressive(
        causal_networks.convolved(1, 2), Gaussian(256), input_scale=(0, 255), start=-1
    ),
    "speaker": lambda: with_conditions("speaker"),
    "memory": lambda: with_conditions("memory"),
    "conditions": lambda: with_conditions("speaker", "mel", "memory"),
    "frames": with_frames,
    "integers": lambda: with_integers(2),
    "integers of channels": lambda: with_integers(3),
    "stereo": lambda: Autoregressive(
        causal_networks.convolved(2, 4), Gaussian(256), input_scale=(0, 1), start=0.1
    ),
    "attention of channels": lambda: Autoregressive(
        causal_networks.convolved(2, 12, True), LogisticMixture(64, 2)
    ),
    "codes": lambda: Autoregressive(
        causal_networks.codebooks(CODES), Categorical(CODES), start=CODES
    ),
    "reals": lambda: Autoregressive(
        causal_networks.convolved(2, 4), Gaussian(None), codec=Reals(unit=2.0)
    ),
    "scan": of_scan,
    "rates": lambda: Autoregressive(causal_networks.u_net(), Gaussian(16)),
    "experts": lambda: of_layer(Experts()),
    **{
        f"one length, {name}": functools.partial(of_one_length, name)
        for name in ("mixed", "subclassed", "Subclassed", "masked", "gpt", "conditioned")
    },
    "forbidden": lambda: of_layer(layers.GRU(8, return_sequences=True), FORBIDDEN),
    "images": lambda: of_images(1),
    "images of channels": lambda: of_images(2),
    "images on a scale": lambda: of_images(1, input_scale=(0, 1)),
}

MEL = RANDOM.normal(size=[NUM, 30, 2]).astype(np.float32)
MEMORY = RANDOM.normal(size=[NUM, 5, 3]).astype(np.float32)
SPEAKERS = np.array([0, 3, 2], np.int32)
CONDITIONS = {
    "mu-law": MEL,
    "speaker": SPEAKERS,
    "memory": MEMORY,
    "frames": RANDOM.normal(size=[NUM, 8, causal_networks.BANDS]).astype(np.float32),
    "conditions": {"speaker": SPEAKERS, "mel": MEL, "memory": MEMORY},
    "one length, conditioned": MEL,
    "integers": RANDOM.integers(0, 5, [NUM, 30]).astype(np.int32),
    "integers of channels": RANDOM.integers(0, 5, [NUM, 30, 1]).astype(np.int32),
}


def tokens(*shape, seed=1):
    return np.random.default_rng(seed).integers(0, TOKENS, shape)


PROMPT = tokens(9)  # of every row
PROMPTS_OF_ROWS = [tokens(1), tokens(20), tokens(12)]
PROMPTS = {
    "prefix": {"prefix": tokens(3, 11)},
    "long prefix": {"prefix": tokens(3, 29)},
    "whole prefix": {"prefix": tokens(3, 30)},
    "one prefix": {"prefix": PROMPT},
    "lengths": {"prefix": [tokens(1), tokens(20), tokens(12)]},
    "empty": {"prefix": [tokens(0), tokens(20), tokens(12)]},
    "top-k": {"top_k": 3, "temperature": 1.5},
    "top-p": {"top_p": 0.6, "prefix": tokens(3, 4)},
    "min-p": {"min_p": 0.2, "temperature": [0.5, 1.0, 2.0], "prefix": tokens(3, 4)},
    "logit bias": {"logit_bias": {3: 2.0, 7: -1e9, 0: 1.5}, "temperature": [0.0, 1.0, 2.0]},
    "allowed": {"allowed": [2, 4, 9], "top_p": 0.9, "prefix": tokens(3, 4)},
    "stop": {"stop": 4, "prefix": [tokens(2), tokens(25), tokens(9)]},
    "stops": {"stop": [4, 9, 11], "prefix": [tokens(2), tokens(25), tokens(9)]},
    "min length": {"stop": [4, 9], "min_length": 18, "prefix": [tokens(2), tokens(25), tokens(9)]},
    "repetition": {"repetition_penalty": 1.7, "prefix": PROMPTS_OF_ROWS},
    "presence": {"presence_penalty": 2.0, "top_p": 0.9, "prefix": PROMPTS_OF_ROWS},
    "rows": {
        "temperature": [0.0, 0.5, 1.5],
        "top_k": 5,
        "prefix": [tokens(1), tokens(20), tokens(12)],
        "stop": 4,
    },
}
SHORT = [0.5 * np.tanh(MEL[0, :12]), 0.5 * np.tanh(MEL[1, :3]), np.zeros([0, 2])]


@functools.cache
def model(name):
    """A model whose weights are the same in every process."""
    keras.utils.set_random_seed(1)
    return MODELS[name]()
