"""What cannot be converted is refused in one sentence that says what to do."""

import sys
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_networks import GPT, Recurrent, Wrapped  # noqa: E402

import onepass  # noqa: E402
from onepass.networks.from_torch import triton_order  # noqa: E402
from onepass.networks.from_torch.table import RULES  # noqa: E402

TOKENS, SIGNAL = torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 8, 1)


def refusal(module, inputs=SIGNAL, error=ValueError, **options):
    with pytest.raises(error) as caught:
        onepass.from_torch(module, inputs=inputs, **options)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    return message


def linear(function):
    return Wrapped(function, nn.Linear(1, 2))


def on_meta():
    with torch.device("meta"):
        return nn.Linear(1, 2)


def with_weight(weight):
    module = nn.Linear(1, 2)
    module.weight = nn.Parameter(weight, requires_grad=weight.is_floating_point())
    return module


def quantised():
    module = "torch.ao.nn.quantized.dynamic.modules.linear"
    return nn.Sequential(type("Packed", (nn.Linear,), {"__module__": module})(1, 2))


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        return torch.jit.trace(nn.Linear(1, 2), SIGNAL)


class Halved(torch.Tensor):
    """A tensor that holds another one, like the weights that torchao makes."""

    @staticmethod
    def __new__(cls, inner, *_):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner, *_):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, *_):
        return Halved(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, operation, types, arguments=(), options=None):
        found = [2 * x.inner if isinstance(x, cls) else x for x in arguments]
        result = operation(*found, **(options or {}))
        return cls(result / 2) if operation is torch.ops.aten.detach.default else result


class Uneven(nn.Module):
    def __init__(self):
        super().__init__()
        self.frames = nn.ConvTranspose1d(2, 2, 5, stride=4)

    def forward(self, x, mel):
        return x + self.frames(mel).transpose(1, 2)


def looped(x, layer):
    state, rows = torch.zeros(x.shape[0], 2), []
    for row in layer(x).unbind(1):
        state = 0.5 * state + row
        rows.append(state)
    return torch.stack(rows, 1)


def of_two(**options):
    return lambda: (linear(lambda x, layer: {"a": layer(x), "b": layer(x)}), SIGNAL, options)


def of(function, **options):
    return lambda: (linear(function), SIGNAL, options)


def in_classes():
    module = linear(lambda x, layer: layer(x.float()[..., None]))
    return module, TOKENS, {"one_hot": True}


# What returns a module, its inputs and options, and parts of the sentence.
REFUSED = {
    "half": (lambda: (GPT().half(), TOKENS), "float32", "float16", "tokens.weight"),
    "no values": (lambda: (on_meta(), SIGNAL), "weights loaded"),
    "quantised": (lambda: (quantised(), SIGNAL), "quantised", "`0`"),
    "integers": (lambda: (with_weight(torch.zeros(2, 1).char()), SIGNAL), "`weight` is int8"),
    "projections": (lambda: (Recurrent(nn.LSTM, proj_size=4), TOKENS), "4 in layer `layers`"),
    "torchscript": (lambda: (scripted(), SIGNAL), "TorchScript", "written in Python"),
    "no tensors": (lambda: (with_weight(Halved(torch.ones(2, 1))), SIGNAL), "`weight` is a Halved"),
    "dtype": (lambda: (GPT(), torch.zeros(1, 8)), "float32 [2, 8]", "`inputs`"),
    "list": (lambda: (GPT(), [1, 2]), "[batch, time, ...]"),
    "number": (lambda: (GPT(), torch.tensor(1.0)), "shape []"),
    "no inputs": (lambda: (GPT(), None), "got None"),
    "no module": (lambda: (lambda x: x, SIGNAL, {"error": TypeError}), "torch.nn.Module"),
    "no file": (lambda: ("missing.pt2", SIGNAL), "no such file"),
    "length": (of(lambda x, f: f(x) + torch.ones(8, 1)), "any length", "constant (8)"),
    "loop": (of(looped), "any length"),
    "batch": (of(lambda x, f: f(x) + torch.ones(2, 8, 1)[:, :1]), "any batch size"),
    "random": (of(lambda x, f: f(x) + torch.rand_like(x)), "same outputs"),
    "branch": (of(lambda x, f: f(x) if x.sum() > 0 else -f(x)), "cannot be exported"),
    "no output": (of_two(), "'a', 'b', got None"),
    "another output": (of_two(output="c"), "'a', 'b', got 'c'"),
    "no condition": (of_two(conditions={"speaker": torch.zeros(1)}), "none, got 'speaker'"),
    "frame rate": (
        lambda: (Uneven(), torch.zeros(1, 9, 1), {"conditions": {"mel": torch.zeros(1, 2, 2)}}),
        *("`mel`", "time step or frame", "4*"),
    ),
    "classes": (in_classes, "`one_hot` must be False unless `inputs` are floats [batch, classes"),
    "no time": (of(lambda x, f: f(x).mean(1)), "time axis"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_converted_is_refused_in_one_sentence(case):
    make, *parts = REFUSED[case]
    module, inputs, *options = make()
    message = refusal(module, inputs, **options[0] if options else {})
    assert [part for part in parts if part not in message] == [], message


def test_weights_on_another_device_are_refused(monkeypatch):
    module = nn.Linear(1, 2)
    monkeypatch.setattr(nn.Parameter, "device", torch.device("cuda", 0), raising=False)
    assert "module.cpu()" in refusal(module) and "cuda:0" in refusal(module)


def test_a_damaged_file_and_one_of_a_fixed_length_are_refused(tmp_path):
    path = tmp_path / "network.pt2"
    path.write_bytes(b"nothing")
    assert "network.pt2 cannot be read" in refusal(path)
    torch.export.save(torch.export.export(nn.Linear(1, 2), (torch.zeros(2, 8, 1),)), path)
    assert "dynamic_shapes" in refusal(path)


def test_an_attribute_that_has_the_name_of_projections_is_none():
    layer = nn.Linear(1, 2)
    layer.proj_size = 4
    assert onepass.from_torch(layer, inputs=SIGNAL)(SIGNAL.numpy()).shape == (1, 8, 2)


@pytest.mark.parametrize(
    "take",
    [
        lambda network: onepass.Autoregressive(network, onepass.likelihoods.Categorical(16)),
        onepass.incremental,
        onepass.check_causal,
    ],
)
def test_a_module_that_was_not_converted_is_refused_with_the_function_that_converts_it(take):
    with pytest.raises(onepass.UserError, match=r"got GPT: onepass\.from_torch"):
        take(GPT())


@pytest.fixture
def table():
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


def test_an_unknown_operation_is_named_with_its_module_and_line_and_can_be_registered(table):
    module = nn.Sequential(nn.Identity(), linear(lambda x, layer: torch.special.i0e(layer(x))))
    message = refusal(module, error=onepass.UnsupportedNetworkError)
    assert "special_i0e" in message and "module `1`" in message and "torch_networks.py:" in message
    assert '@onepass.aten("special_i0e")' in message

    import tensorflow as tf

    onepass.aten("special_i0e")(lambda x: tf.math.special.bessel_i0e(x))
    network = onepass.from_torch(module, inputs=SIGNAL)
    x = torch.rand(2, 5, 1)
    wanted = module(x).detach().numpy()
    assert abs(network(x.numpy()).numpy() - wanted).max() < 1e-5


def test_an_operation_of_a_layer_of_torch_has_no_line():
    layer = nn.utils.parametrizations.orthogonal(nn.Linear(1, 1), "weight", "householder")
    message = refusal(nn.Sequential(layer), error=onepass.UnsupportedNetworkError)
    assert "linalg_householder_product of module `0.parametrizations.weight.0`;" in message


def test_rules_are_registered_under_names():
    for names in ((), (1,), ("",)):
        with pytest.raises(ValueError, match="names of operations"):
            onepass.aten(*names)


@pytest.fixture
def triton(monkeypatch, tmp_path):
    (tmp_path / "triton.py").write_text("imported = True")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    yield
    sys.modules.pop("triton", None)


def test_tensorflow_before_triton_is_said_in_one_line_before_the_process_ends(triton):
    assert "tensorflow" in sys.modules
    with pytest.raises(onepass.UserError, match="before TensorFlow") as caught:
        triton_order.import_triton()
    assert "\n" not in str(caught.value) and "triton" not in sys.modules
    triton_order.follow_torch()
    assert "triton" not in sys.modules


def test_torch_before_onepass_brings_triton_before_tensorflow(triton, monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.delitem(sys.modules, "torch")
    triton_order.follow_torch()
    assert "triton" not in sys.modules
    monkeypatch.setitem(sys.modules, "torch", torch)
    triton_order.follow_torch()
    assert sys.modules["triton"].imported
