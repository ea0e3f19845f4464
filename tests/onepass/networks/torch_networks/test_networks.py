"""Networks of PyTorch are converted untouched, and sampled by a derived step."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tensorflow as tf  # noqa: E402
from runs import eagerly  # noqa: E402
from torch import nn  # noqa: E402
from torch_networks import GPT, LEVELS, Encoder, PixelCNN, Recurrent, WaveNet, Wrapped  # noqa: E402

import onepass  # noqa: E402
from onepass.likelihoods import Categorical, Gaussian  # noqa: E402
from onepass.networks.from_torch.export import export  # noqa: E402
from onepass.networks.from_torch.graph import write_folder  # noqa: E402

TOKENS = torch.zeros(1, 8, dtype=torch.int64)
WAVE = torch.zeros(1, 1, 8)


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, LEVELS, shape)


def wave(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def original(module, *arguments):
    module.eval()
    with torch.no_grad():
        return module(*map(torch.tensor, arguments)).numpy()


def called(network, *arguments):
    """Return outputs of a call, which are the same in a graph for any batch and length."""
    outputs = network(*map(tf.constant, arguments)).numpy()
    traced = tf.function(network, input_signature=network.input_signature, autograph=False)
    cast = [tf.cast(x, s.dtype) for x, s in zip(arguments, network.input_signature, strict=True)]
    np.testing.assert_allclose(traced(*cast), outputs, 1e-5, 1e-6)
    return outputs


def as_images(outputs):
    return np.moveaxis(outputs, 1, -1)


MODULES = {
    "gpt": GPT,
    "gru": lambda: Recurrent(batch_first=True),
    "gru, time first": Recurrent,
    "lstm": lambda: Recurrent(nn.LSTM, batch_first=True, bias=False),
    "rnn": lambda: Recurrent(nn.RNN, nonlinearity="relu"),
    "encoder": Encoder,
}


@pytest.mark.parametrize("name", MODULES)
def test_a_network_of_tokens_is_converted_and_has_a_step(name):
    torch.manual_seed(1)
    module = MODULES[name]().eval()
    network = onepass.from_torch(module, inputs=TOKENS)
    for shape in ((2, 21), (1, 2), (3, 1)):
        symbols = tokens(*shape)
        np.testing.assert_allclose(called(network, symbols), original(module, symbols), 1e-4, 1e-5)
    if name == "encoder":  # test_torch_laws.py has other networks
        model = onepass.Autoregressive(network, Categorical(LEVELS), start=0)
        drawn = model.sample(num=2, length=70, seed=3, method="cached")
        assert (drawn[:, :20] == model.sample(num=2, length=20, seed=3, method="naive")).all()


def test_a_bidirectional_layer_is_converted_and_refused_as_not_causal():
    module = Recurrent(nn.LSTM, bidirectional=True, batch_first=True)
    network = onepass.from_torch(module, inputs=TOKENS)
    symbols = tokens(2, 5)
    np.testing.assert_allclose(called(network, symbols), original(module, symbols), 1e-4, 1e-5)
    assert not onepass.check_causal(network)


def test_an_encoder_without_a_mask_is_refused_by_the_name_of_its_layer():
    network = onepass.from_torch(Encoder(is_causal=False).eval(), inputs=TOKENS)
    with pytest.raises(onepass.NotCausalError, match=r"layers\.layers\.0\.self_attn"):
        onepass.incremental(network)


def test_channels_before_time_move_to_the_end_of_inputs_conditions_and_outputs():
    module = WaveNet(Gaussian().num_parameters, condition=5)
    conditions = {"speaker": torch.zeros(1, dtype=torch.int64), "mel": torch.zeros(1, 5, 8)}
    network = onepass.from_torch(module, inputs=WAVE, conditions=conditions)
    assert list(network.conditions) == ["speaker", "mel"]
    assert [spec.shape.as_list() for spec in network.input_signature] == [
        [None, None, 1],
        [None],
        [None, None, 5],
    ]
    x, mel, speaker = wave(2, 9, 1), wave(2, 9, 5, seed=1), np.array([3, 1])
    turned = [np.moveaxis(each, -1, 1) for each in (x, mel)]
    wanted = np.moveaxis(original(module, *turned, speaker), 1, -1)
    np.testing.assert_allclose(called(network, x, speaker, mel), wanted, 1e-4, 1e-5)
    model = onepass.Autoregressive(network, Gaussian())
    given = {"mel": mel[:, :6], "speaker": speaker}
    drawn = [model.sample(2, 6, seed=1, condition=given, method=m) for m in ("cached", "naive")]
    np.testing.assert_allclose(*drawn, 1e-3, 1e-4)


def test_masked_weights_that_a_module_overwrites_are_masked_in_every_call():
    torch.manual_seed(1)
    module = PixelCNN().eval()
    network = onepass.from_torch(module, inputs=torch.zeros(1, 1, 6, 6))
    x = wave(2, 1, 5, 7)
    wanted = as_images(original(module, x))
    np.testing.assert_allclose(called(network, as_images(x)), wanted, 1e-4, 1e-5)
    model = onepass.Autoregressive(network, Categorical(4), order="raster")
    assert model.sample(num=1, length=(4, 5, 1), seed=1).shape == (1, 4, 5, 1)
    weights = network.weights["layers.0.weight"]
    weights.assign(tf.ones_like(weights))
    model.check_causal()


def test_parameters_keep_their_names_and_flags_when_they_are_trained_and_stored(tmp_path):
    module = GPT()
    module.places.weight.requires_grad_(False)
    network = onepass.from_torch(module, inputs=TOKENS)
    frozen = {name for name, each in network.weights.items() if not each.trainable}
    assert frozen == {"places.weight"}
    assert "head.weight" not in network.weights and "tokens.weight" in network.weights  # tied
    assert len(network.weights) == len(dict(module.named_parameters()))
    model = onepass.Autoregressive(network, Categorical(LEVELS), start=0)
    trained = {variable.name.partition(":")[0] for variable in model.trainable_variables()}
    assert trained == network.weights.keys() - frozen
    before = {name: each.numpy() for name, each in network.weights.items()}
    rows = np.repeat(tokens(1, 12), 4, 0)
    with eagerly():
        onepass.fit(model, rows, steps=2, batch_size=4, seed=1)
    changed = {n for n, each in network.weights.items() if np.any(each.numpy() != before[n])}
    assert changed == before.keys() - {"places.weight"}
    onepass.save(model, tmp_path / "model")
    stored = onepass.load(tmp_path / "model")
    np.testing.assert_allclose(stored.log_prob(rows), model.log_prob(rows), 1e-4, 1e-5)
    assert len(stored.weights_read().frozen) == 1


def test_a_module_stays_as_it_was():
    module = Recurrent(batch_first=True, dropout=0.5).train()
    module.tokens.eval()
    before = {name: each.clone() for name, each in module.state_dict().items()}
    with pytest.warns(UserWarning, match="training mode"):
        onepass.from_torch(module, inputs=TOKENS)
    assert module.training and module.layers.training and not module.tokens.training
    assert "forward" not in vars(module.layers)
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())


def test_a_module_is_found_in_what_wraps_it():
    module = GPT().eval()
    symbols = tokens(2, 5)
    for wrapped in (nn.DataParallel(module), torch.compile(module, backend="eager")):
        network = onepass.from_torch(wrapped, inputs=TOKENS)
        assert network.weights.keys() == dict(module.named_parameters()).keys()
        np.testing.assert_allclose(network(symbols), original(module, symbols), 1e-4, 1e-5)


def test_a_branch_and_a_loop_of_torch_are_mapped():
    from torch._higher_order_ops.scan import scan

    def smoothed(x, layer):
        def step(carry, row):
            carry = 0.5 * carry + row
            return carry, carry.clone()

        rows = scan(step, torch.zeros(x.shape[0], 3), layer(x), dim=1)[1]
        return torch.cond(rows.sum() > 0, lambda y: 2 * y, lambda y: y - 1, (rows,))

    module = Wrapped(smoothed, nn.Linear(1, 3))
    network = onepass.from_torch(module, inputs=torch.zeros(1, 6, 1))
    for sign in (1, -1):
        module.layers[0].bias.data.fill_(5.0 * sign)
        network.weights["layers.0.bias"].assign([5.0 * sign] * 3)
        x = wave(2, 7, 1)
        np.testing.assert_allclose(called(network, x), original(module, x), 1e-4, 1e-5)


def test_branches_within_branches_are_kept_apart_in_a_folder(tmp_path):
    def branched(x, layer):
        def inner(y):
            return torch.cond(y.sum() > 9, lambda z: 3 * z, lambda z: z - 3, (y,))

        y = layer(x)
        return torch.cond(y.sum() > 0, inner, lambda z: inner(-z) + 100, (y,))

    module = Wrapped(branched, nn.Linear(1, 2))
    graph = export(module, inputs=torch.zeros(1, 6, 1))
    network = onepass.load_network(write_folder(graph, tmp_path / "network"))
    for bias in (5.0, 0.1, -0.1, -5.0):
        for weights in (module.layers[0].weight, module.layers[0].bias):
            weights.data.fill_(bias if weights.dim() == 1 else 0.0)
        network.weights["layers.0.bias"].assign([bias] * 2)
        network.weights["layers.0.weight"].assign([[0.0], [0.0]])
        x = wave(2, 7, 1)
        np.testing.assert_allclose(called(network, x), original(module, x), 1e-5, 1e-5)


class Masked(nn.Module):
    """Attention over elements that a mask [batch, time] shows, indexed as transformers does."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(LEVELS, 8), nn.Linear(8, LEVELS)

    def forward(self, x, mask):
        (batch, time), h = x.shape, self.tokens(x)[:, None]
        rows, columns = torch.arange(batch)[:, None, None, None], torch.arange(time) + 0
        shown = mask.expand_as(x).to(torch.bool)[rows, columns[None, None, None]]
        shown = shown & (columns <= columns[:, None])
        attended = nn.functional.scaled_dot_product_attention(h, h, h, attn_mask=shown)
        return self.head(attended + h)[:, 0]


def test_a_mask_of_elements_is_a_condition_with_time_and_has_a_step():
    torch.manual_seed(0)
    module, ones = Masked().eval(), torch.ones(1, 8, dtype=torch.int64)
    network = onepass.from_torch(module, inputs=TOKENS, conditions={"mask": ones})
    mask = np.random.default_rng(0).integers(0, 2, (2, 20))
    mask[1, :4], symbols = 0, tokens(2, 20)  # the first rows see nothing at all
    wanted = original(module, symbols, mask)
    np.testing.assert_allclose(called(network, symbols, mask), wanted, 1e-5, 1e-5)
    model = onepass.Autoregressive(network, Categorical(LEVELS), start=0)
    drawn = model.sample(2, 20, 1, mask, method="cached")
    np.testing.assert_array_equal(model.sample(2, 20, 1, mask, method="naive"), drawn)
    assert np.any(model.sample(2, 20, 1, np.ones_like(mask)) != drawn)


@pytest.mark.parametrize(
    ("result", "output", "place"),
    [
        (lambda y: {"logits": y, "other": 2 * y}, None, 1.0),
        (lambda y: {"a": y, "b": 2 * y}, "b", 2.0),
        (lambda y: (y, 2 * y), 1, 2.0),
        (lambda y: (y, None), None, 1.0),
    ],
)
def test_an_output_is_found_by_itself_by_name_or_by_index(result, output, place):
    module = Wrapped(lambda x, layer: result(layer(x)), nn.Linear(1, 2))
    network = onepass.from_torch(module, inputs=torch.zeros(1, 6, 1), output=output)
    x = torch.tensor(wave(1, 5, 1))
    wanted = place * module.layers[0](x).detach().numpy()
    np.testing.assert_allclose(network(x.numpy()), wanted, 1e-5, 1e-6)


def test_a_pt2_file_is_a_network(tmp_path):
    module = GPT().eval()
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    program = torch.export.export(module, (tokens_of(2, 8),), dynamic_shapes=(sizes,))
    torch.export.save(program, tmp_path / "gpt.pt2")
    network = onepass.from_torch(tmp_path / "gpt.pt2")
    symbols = tokens(3, 11)
    np.testing.assert_allclose(called(network, symbols), original(module, symbols), 1e-4, 1e-5)
    assert "tokens.weight" in network.weights


def tokens_of(*shape):
    return torch.zeros(*shape, dtype=torch.int64)


def test_a_table_of_positions_bounds_the_length():
    network = onepass.from_torch(GPT(length=32), inputs=TOKENS)
    model = onepass.Autoregressive(network, Categorical(LEVELS), start=0)
    with pytest.raises(ValueError, match="32"):
        model.sample(num=1, length=33, seed=1)


class Codes(nn.Module):
    """Several tokens at each time step, [batch, time, codes], and a memory with a mask."""

    def __init__(self):
        super().__init__()
        self.tokens, self.gpt = nn.Embedding(LEVELS, 8), GPT()
        self.cross = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, codes, text, mask):
        batch, time, count = codes.shape
        logits = self.gpt(codes.transpose(1, 2).reshape(batch * count, time))
        found = self.cross(self.tokens(codes[..., 0]), text, text, ~mask, need_weights=False)[0]
        return logits.view(batch, count, time, -1).transpose(1, 2) + found.mean(-1)[..., None, None]


def test_codes_are_channels_and_a_memory_has_an_axis_of_its_own():
    torch.manual_seed(2)
    module = Codes().eval()
    conditions = {"text": torch.zeros(1, 5, 8), "mask": torch.ones(1, 5, dtype=torch.bool)}
    inputs = torch.zeros(1, 8, 3, dtype=torch.int64)
    network = onepass.from_torch(module, inputs=inputs, conditions=conditions)
    assert network.input_signature[0].shape.as_list() == [None, None, 3]
    assert all(isinstance(spec, onepass.Memory) for spec in network.conditions.values())
    codes, text, mask = tokens(2, 7, 3), wave(2, 4, 8), np.arange(4)[None] < [[4], [2]]
    wanted = original(module, codes, text, mask).reshape(2, 7, -1)
    np.testing.assert_allclose(called(network, codes, text, mask), wanted, 1e-4, 1e-5)
    model = onepass.Autoregressive(network, Categorical(LEVELS), start=0)
    given = {"text": text, "mask": mask}
    drawn = [model.sample(2, 6, seed=1, condition=given, method=m) for m in ("cached", "naive")]
    np.testing.assert_array_equal(*drawn)


class Vocoder(nn.Module):
    """A vocoder whose frames are convolved, stretched and smoothed, as in wavenet_vocoder."""

    def __init__(self, bands=3, side=1, scales=(2, 3)):
        super().__init__()
        self.scales = scales
        self.frames = nn.Conv1d(bands, bands, 2 * side + 1, bias=False)
        smooth = [nn.Conv2d(1, 1, (1, 2 * s + 1), padding=(0, s), bias=False) for s in scales]
        self.smooth = nn.ModuleList(smooth)
        self.past, self.out = nn.Conv1d(1, 8, 2), nn.Conv1d(8, 2, 1)
        self.layers = nn.ModuleList([nn.Conv1d(bands, 8, 1) for _ in range(2)])

    def forward(self, x, c):
        c = self.frames(c)[:, None]
        for scale, layer in zip(self.scales, self.smooth, strict=True):
            c = layer(nn.functional.interpolate(c, scale_factor=(1, scale), mode="nearest"))
        assert c.size(-1) == x.size(-1)
        x = self.past(nn.functional.pad(x, (1, 0)))
        for layer in self.layers:
            x = torch.tanh(x + layer(c[:, 0]))
        return self.out(x)


def test_frames_are_found_in_the_export_and_kept_in_a_folder(tmp_path):
    torch.manual_seed(2)
    module = Vocoder().eval()
    conditions = {"c": torch.zeros(1, 3, 9)}
    inputs = torch.zeros(1, 1, 42)
    network = onepass.from_torch(module, inputs=inputs, conditions=conditions)
    write_folder(export(module, inputs=inputs, conditions=conditions), tmp_path / "network")
    for found in (network, onepass.load_network(tmp_path / "network")):
        spec = found.conditions["c"]
        assert isinstance(spec, onepass.Frames) and (spec.hop, spec.extra) == (6, 2)
        assert spec.shape.as_list() == [None, None, 3]
        x, mel = wave(2, 24, 1), wave(2, 6, 3)
        wanted = original(module, x.transpose(0, 2, 1), mel.transpose(0, 2, 1))
        np.testing.assert_allclose(found(x, mel), as_images(wanted), 1e-4, 1e-5)
    model = onepass.Autoregressive(network, Gaussian(levels=256))
    (kept,) = model.symbol_network.hoisted.conditions.values()
    assert np.prod(kept.shape[2:]) == 3  # bands, not a projection for each layer
    drawn = [model.sample(2, 22, 1, mel, method=m) for m in ("auto", "cached", "naive")]
    np.testing.assert_allclose(drawn[1:], [drawn[0]] * 2, atol=1e-6)


def test_gradients_of_all_parameters_are_those_of_torch():
    torch.manual_seed(4)
    module = GPT().eval()
    network = onepass.from_torch(module, inputs=TOKENS)
    symbols = tokens(2, 9)
    loss = nn.functional.cross_entropy(
        module(torch.tensor(symbols)).flatten(0, 1), torch.tensor(symbols).flatten()
    )
    loss.backward()
    with tf.GradientTape() as tape:
        logits = tf.nn.log_softmax(network(symbols))
        found = -tf.reduce_mean(tf.gather(logits, symbols, batch_dims=2))
    np.testing.assert_allclose(found, loss.item(), 1e-5)
    gradients = tape.gradient(found, network.weights)
    for name, parameter in module.named_parameters():
        own = tf.convert_to_tensor(gradients[name])
        np.testing.assert_allclose(own, parameter.grad, 1e-3, 1e-5, err_msg=name)


def test_a_length_that_export_bounds_is_said_by_the_call():
    class Bounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 2)
            self.register_buffer("mask", torch.ones(16, 16).tril())

        def forward(self, x):
            rows = self.mask[: x.shape[1], : x.shape[1]]
            return rows @ self.layer(x)

    module = Bounded()
    network = onepass.from_torch(module, inputs=torch.zeros(1, 6, 1))
    x = wave(1, 16, 1)
    np.testing.assert_allclose(network(x), original(module, x), 1e-5, 1e-5)
    with pytest.raises(ValueError, match=r"from 1 to 16 time steps.*got 17"):
        network(wave(1, 17, 1))
    with pytest.raises(ValueError, match="takes 1 arguments, inputs, got 2"):
        network(x, x)
