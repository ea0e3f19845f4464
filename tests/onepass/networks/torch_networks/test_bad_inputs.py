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


def test_half_precision_weights_are_refused():
    message = refusal(GPT().half(), TOKENS)
    assert "float32" in message and "float16" in message and "tokens.weight" in message


def test_weights_without_values_are_refused():
    with torch.device("meta"):
        module = nn.Linear(1, 2)
    assert "weights loaded" in refusal(module)


def test_weights_on_another_device_are_refused(monkeypatch):
    module = nn.Linear(1, 2)
    monkeypatch.setattr(nn.Parameter, "device", torch.device("cuda", 0), raising=False)
    assert "module.cpu()" in refusal(module) and "cuda:0" in refusal(module)


def test_quantised_modules_are_refused():
    class Packed(nn.Linear):
        pass

    Packed.__module__ = "torch.ao.nn.quantized.dynamic.modules.linear"
    message = refusal(nn.Sequential(Packed(1, 2)))
    assert "quantised" in message and "`0`" in message
    integers = nn.Linear(1, 2)
    integers.weight = nn.Parameter(torch.zeros(2, 1, dtype=torch.int8), requires_grad=False)
    assert "`weight` is int8" in refusal(integers)


def test_projections_of_an_lstm_are_refused_by_name():
    module = Recurrent(nn.LSTM, proj_size=4)
    assert "proj_size=4 in layer `layers`" in refusal(module, TOKENS)


def test_an_attribute_that_has_the_name_of_projections_is_none():
    layer = nn.Linear(1, 2)
    layer.proj_size = 4
    assert onepass.from_torch(layer, inputs=SIGNAL)(SIGNAL.numpy()).shape == (1, 8, 2)


def test_a_module_of_torchscript_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        scripted = torch.jit.trace(nn.Linear(1, 2), SIGNAL)
    assert "TorchScript" in refusal(scripted) and "written in Python" in refusal(scripted)


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


def test_weights_that_are_no_plain_tensors_are_refused():
    module = nn.Linear(1, 2)
    module.weight = nn.Parameter(Halved(module.weight.detach() / 2))
    assert "plain tensors, but `weight` is a Halved" in refusal(module)


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


def test_inputs_of_a_wrong_dtype_or_shape_are_refused():
    message = refusal(GPT(), torch.zeros(1, 8))
    assert "float32 [2, 8]" in message and "`inputs`" in message
    assert "[batch, time, ...]" in refusal(GPT(), [1, 2])
    assert "shape []" in refusal(GPT(), torch.tensor(1.0))
    assert "got None" in refusal(GPT(), None)


def test_what_is_no_module_is_refused():
    assert "torch.nn.Module" in refusal(lambda x: x, error=TypeError)
    assert "no such file" in refusal("missing.pt2")


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "network.pt2"
    path.write_bytes(b"nothing")
    assert "network.pt2 cannot be read" in refusal(path)


def test_a_fixed_length_is_refused_with_the_reason_of_torch():
    message = refusal(linear(lambda x, layer: layer(x) + torch.ones(8, 1)))
    assert "any length" in message and "constant (8)" in message


def test_a_loop_over_time_steps_is_refused():
    def looped(x, layer):
        state, rows = torch.zeros(x.shape[0], 2), []
        for row in layer(x).unbind(1):
            state = 0.5 * state + row
            rows.append(state)
        return torch.stack(rows, 1)

    assert "any length" in refusal(linear(looped))


def test_a_fixed_batch_is_refused():
    assert "any batch size" in refusal(
        linear(lambda x, layer: layer(x) + torch.ones(2, 8, 1)[:, :1])
    )


def test_a_file_with_a_fixed_length_is_refused_with_a_hint(tmp_path):
    program = torch.export.export(nn.Linear(1, 2), (torch.zeros(2, 8, 1),))
    torch.export.save(program, tmp_path / "fixed.pt2")
    assert "dynamic_shapes" in refusal(tmp_path / "fixed.pt2")


def test_random_outputs_are_refused():
    assert "same outputs" in refusal(linear(lambda x, layer: layer(x) + torch.rand_like(x)))


def test_a_branch_on_values_is_refused():
    message = refusal(linear(lambda x, layer: layer(x) if x.sum() > 0 else -layer(x)))
    assert "cannot be exported" in message


def test_an_output_or_a_condition_of_another_name_is_refused():
    both = linear(lambda x, layer: {"a": layer(x), "b": layer(x)})
    assert "'a', 'b', got None" in refusal(both)
    assert "'a', 'b', got 'c'" in refusal(both, output="c")
    conditions = {"speaker": torch.zeros(1)}
    assert "none, got 'speaker'" in refusal(both, conditions=conditions)


class Uneven(nn.Module):
    def __init__(self):
        super().__init__()
        self.frames = nn.ConvTranspose1d(2, 2, 5, stride=4)

    def forward(self, x, mel):
        return x + self.frames(mel).transpose(1, 2)


def test_a_condition_without_a_frame_rate_is_refused_by_name():
    signal, mel = torch.zeros(1, 9, 1), torch.zeros(1, 2, 2)
    message = refusal(Uneven(), signal, conditions={"mel": mel})
    assert "`mel`" in message and "time step or frame" in message and "4*" in message


def test_one_hot_vectors_are_floats_with_an_axis_of_classes():
    tokens = linear(lambda x, layer: layer(x.float()[..., None]))
    message = refusal(tokens, inputs=torch.zeros(1, 8, dtype=torch.int64), one_hot=True)
    assert "`one_hot` must be False unless `inputs` are floats [batch, classes, time]" in message


def test_an_output_without_time_is_refused():
    assert "time axis" in refusal(linear(lambda x, layer: layer(x).mean(1)))


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
    """A triton that is installed, and says that it was imported."""
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
