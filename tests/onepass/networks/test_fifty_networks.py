"""Fifty networks as their users write them, each through everything that is done with a model."""

import functools

import fifty_networks
import http_running
import keras
import numpy as np
import pytest
from runs import eagerly

import onepass
import serving
from onepass.remote_model import RemoteModel

NUM, LENGTH, SEED = 2, 20, 3
# Whose graphs have no step; they are sampled by the fixed point.
WITHOUT_STEP = {"skewed scores", "long convolution", "two rates"}


class Travels:
    """A model, what whole passes draw of it, and its copies on disk, each made once."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder

    @functools.cached_property
    def model(self):
        keras.utils.set_random_seed(1)
        return fifty_networks.MODELS[self.name]()

    @functools.cached_property
    def drawn(self):
        return draw(self.model, "naive")

    @functools.cached_property
    def nats(self):
        return np.asarray(self.model.log_prob(self.drawn))

    @functools.cached_property
    def loaded(self):
        return onepass.load(onepass.save(self.model, self.folder / "saved"))

    @functools.cached_property
    def bundle(self):
        return onepass.export(self.model, self.folder / "models" / "own" / "1", length=LENGTH)


def draw(model, method="auto"):
    return model.sample(NUM, LENGTH, SEED, method=method)


def train(model, elements):
    """Train for two steps, and check that the weights moved and all samplers follow them."""
    before = np.asarray(model.log_prob(elements))
    rows = np.repeat(elements, 4, 0)
    with eagerly():
        onepass.fit(model, rows, steps=2, batch_size=4, optimizer=keras.optimizers.Adam(0.01))
    after = np.asarray(model.log_prob(elements))
    assert np.isfinite(after).all() and after.sum() > before.sum()
    np.testing.assert_array_equal(draw(model), draw(model, "naive"))


def check(travels):
    found = onepass.check_causal(travels.model.network, inputs=travels.model.symbol_network.inputs)
    assert found.is_causal, found.message
    assert found.has_step == (travels.name not in WITHOUT_STEP), found.message


def sample(travels):
    model = travels.model
    assert len(np.unique(travels.drawn)) > 1 and np.isfinite(travels.nats).all()
    methods = ("fixed-point", "auto") if travels.name in WITHOUT_STEP else ("auto", "cached")
    for method in (*methods, "fixed-point"):
        np.testing.assert_array_equal(draw(model, method), travels.drawn, method)
    if travels.name in WITHOUT_STEP:
        with pytest.raises(onepass.UnsupportedNetworkError):
            list(model.stream(length=LENGTH, seed=SEED, num=NUM, chunk=7))
        return
    chunks = list(model.stream(length=LENGTH, seed=SEED, num=NUM, chunk=7))
    np.testing.assert_array_equal(np.concatenate(chunks, 1), travels.drawn)


def save(travels):
    np.testing.assert_array_equal(draw(travels.loaded), travels.drawn)
    np.testing.assert_array_equal(draw(travels.loaded, "naive"), travels.drawn)
    nats = travels.loaded.log_prob(travels.drawn)
    rounding = 1e-2 if "float16" in travels.name else 1e-4  # of 16 bits
    np.testing.assert_allclose(nats, travels.nats, rtol=rounding, atol=1e-5)


def fit(travels):
    """A model is trained, stored and trained on."""
    keras.utils.set_random_seed(1)
    model = fifty_networks.MODELS[travels.name]()
    train(model, travels.drawn)
    loaded = onepass.load(onepass.save(model, travels.folder / "trained"))
    np.testing.assert_array_equal(draw(loaded), draw(model))
    train(loaded, travels.drawn)


def export(travels):
    bundle = serving.load(travels.bundle)
    np.testing.assert_array_equal(bundle.sample(NUM, LENGTH, SEED), travels.drawn)


class Store:
    """The folder of one bundle as `http_running` takes it."""

    def __init__(self, root):
        self.root = root

    def load(self, path, *rest, **named):
        return serving.load(path)


def serve(travels):
    root = travels.bundle.parent.parent
    with http_running.Running(Store(root)) as server:
        remote = RemoteModel(f"{server.url}/own")
        try:
            np.testing.assert_array_equal(remote.sample(NUM, LENGTH, SEED), travels.drawn)
        finally:
            remote.close()


def compress(travels):
    data = onepass.compress(travels.model, travels.drawn)
    bits = -travels.nats.sum() / np.log(2)
    assert 8 * len(data) < bits + 8 * 400
    np.testing.assert_allclose(onepass.decompress(travels.model, data), travels.drawn, atol=1e-6)


# The others are slow.
INTEGRATION = ("constant table", "attention and gru", "forbidden token")
MODELS = [
    pytest.param(name, marks=getattr(pytest.mark, "integration" if name in INTEGRATION else "slow"))
    for name in fifty_networks.MODELS
]


@pytest.fixture(scope="module", params=MODELS)
def travels(request, tmp_path_factory):
    return Travels(request.param, tmp_path_factory.mktemp("travels"))


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras, when it quantises
@pytest.mark.parametrize(
    "use", [check, sample, save, fit, export, serve, compress], ids=lambda use: use.__name__
)
def test_a_network_goes_through_every_use(travels, use):
    use(travels)
