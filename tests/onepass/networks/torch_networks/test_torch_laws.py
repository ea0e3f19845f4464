"""Networks of PyTorch obey the laws of every model, a row for each kind of network."""

import pytest

torch = pytest.importorskip("torch")

from laws.table import IMAGES, LENGTH, SMALL_TABLE, Row  # noqa: E402
from torch_networks import GPT, LEVELS, PixelCNN, Recurrent, WaveNet  # noqa: E402

import onepass  # noqa: E402
from onepass.likelihoods import Categorical, Gaussian  # noqa: E402
from onepass.testing import LAWS, Subject, check_law  # noqa: E402


def tokens(module):
    with torch.no_grad():
        module.head.weight.mul_(0.3)  # no token is nearly certain
    network = onepass.from_torch(module.eval(), inputs=torch.zeros(1, 8, dtype=torch.int64))
    return onepass.Autoregressive(network, Categorical(LEVELS), start=0)


def reals():
    network = onepass.from_torch(WaveNet(2).eval(), inputs=torch.zeros(1, 1, 8))
    return onepass.Autoregressive(network, Gaussian())


def images():
    network = onepass.from_torch(PixelCNN().eval(), inputs=torch.zeros(1, 1, 6, 6))
    return onepass.Autoregressive(network, Categorical(4), order="raster")


RASTER = (*IMAGES, "chunks_are_the_whole")
MODELS = {
    "gpt": Row(lambda: tokens(GPT()), (), {"length": LENGTH}),
    "gru": Row(lambda: tokens(Recurrent(batch_first=True)), (), {"length": LENGTH}),
    "wavenet": Row(reals, SMALL_TABLE, {"length": LENGTH, "atol": 2e-5}),
    "pixelcnn": Row(images, RASTER, {"length": (4, 5, 1)}),
}


@pytest.fixture(scope="module")
def subjects():
    torch.manual_seed(3)
    return {name: Subject(row.make(), **row.asked) for name, row in MODELS.items()}


@pytest.mark.parametrize(
    ("name", "law"),
    [(name, law) for name, row in MODELS.items() for law in LAWS if law not in row.lacks],
)
def test_a_network_of_pytorch_obeys_a_law(subjects, name, law):
    assert check_law(law, subjects[name]) == ""
