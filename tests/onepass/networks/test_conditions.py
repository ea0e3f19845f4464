"""Tests of conditions: at the rate of the elements, the same at every time, memories, by name."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from causal_networks import conditioned
from runs import eagerly

import onepass
from onepass.likelihoods import Categorical, Gaussian, Integers
from onepass.model import Autoregressive
from onepass.testing import Subject, check_law

LEVELS, NUM, LENGTH = 8, 3, 12
RANDOM = np.random.default_rng(0)
GIVEN = {
    "speaker": np.array([0, 3, 2], np.int32),
    "vector": RANDOM.normal(size=[NUM, 3]).astype(np.float32),
    "mel": RANDOM.normal(size=[NUM, LENGTH, 2]).astype(np.float32),
    "memory": RANDOM.normal(size=[NUM, 5, 3]).astype(np.float32),
}
layers = keras.layers


@functools.cache
def model_of(*kinds):
    return Autoregressive(conditioned(*kinds), Categorical(LEVELS), codec=Integers(LEVELS))


def given_to(kinds, **changed):
    named = {name: GIVEN[name] for name in kinds} | changed
    return named if len(kinds) > 1 else named[kinds[0]]


def drawn(model, condition, **options):
    return model.sample(NUM, LENGTH, 1, condition, **options)


def test_the_kinds_of_conditions_of_a_keras_model_follow_from_its_shapes():
    found = model_of(*GIVEN).conditions
    assert list(found) == list(GIVEN)
    assert [isinstance(spec, onepass.Memory) for spec in found.values()] == [False] * 3 + [True]
    assert found["speaker"].dtype == tf.int32
    assert found["mel"].shape.as_list() == [None, None, 2]


def test_inputs_in_a_dict_are_found_by_name():
    kinds = ("mel", "speaker")
    model = Autoregressive(
        conditioned(*kinds, as_dict=True), Categorical(LEVELS), codec=Integers(LEVELS)
    )
    tokens, given = RANDOM.integers(0, LEVELS, [NUM, LENGTH]), given_to(kinds)
    expected = model_of(*kinds).conditionals(tokens, given)
    np.testing.assert_array_equal(model.conditionals(tokens, given), expected)


def test_a_dict_with_two_inputs_that_may_be_the_elements_is_refused():
    inputs = {name: keras.Input([None], dtype="int32", name=name) for name in ("a", "b")}
    h = layers.Embedding(LEVELS, 2)(inputs["a"]) + layers.Embedding(LEVELS, 2)(inputs["b"])
    model = keras.Model(inputs, layers.Dense(LEVELS)(h))
    with pytest.raises(ValueError, match="which input is the elements, a or b may be"):
        Autoregressive(model, Categorical(LEVELS))


@pytest.mark.parametrize("name", GIVEN)
def test_a_row_depends_on_every_condition_of_its_own(name):
    model, tokens = model_of(*GIVEN), np.zeros([NUM, LENGTH], np.int32)
    other = GIVEN[name].copy()
    other[1] = 1 if name == "speaker" else 3.0 * other[1] + 1.0
    first, second = (model.conditionals(tokens, GIVEN | {name: x}) for x in (GIVEN[name], other))
    changed = (abs(first - second) > 1e-4).numpy().any((1, 2))
    assert changed.tolist() == [False, True, False]


def test_one_row_is_for_all():
    model = model_of(*GIVEN)
    one = GIVEN | {"speaker": 2, "vector": GIVEN["vector"][0], "memory": GIVEN["memory"][:1]}
    each = GIVEN | {"speaker": [2] * NUM}
    each |= {name: np.repeat(GIVEN[name][:1], NUM, 0) for name in ("vector", "memory")}
    np.testing.assert_array_equal(drawn(model, one), drawn(model, each))


def test_what_does_not_change_with_time_is_no_part_of_a_step():
    model = model_of(*GIVEN)
    step = model.symbol_network.stepped
    state = model.symbol_network.initial_state(
        NUM, 0, {name: tf.constant(GIVEN[name]) for name in ("speaker", "vector", "memory")}
    )["network"]
    arguments = tf.zeros([NUM, 1], tf.int32), state, tf.constant(GIVEN["mel"][:, :1])
    of_step = operations_of(step.step, *arguments)
    whole = operations_of(model.conditionals, tf.zeros([NUM, LENGTH], tf.int32), GIVEN)
    assert "Softplus" in whole  # of the encoder
    assert "Tanh" in of_step
    assert "Softplus" not in of_step
    assert of_step.count("GatherV2") < whole.count("GatherV2")  # of the speaker


def operations_of(function, *arguments):
    traced = tf.function(function, autograph=False).get_concrete_function(*arguments)
    definition = traced.graph.as_graph_def()
    nodes = [node for each in definition.library.function for node in each.node_def]
    return [node.op for node in [*definition.node, *nodes]]


WRONG = {
    "missing": ({"speaker": None}, r'`condition\["speaker"\]` must be given, \(3,\), got None'),
    "rows": ({"speaker": [0, 1]}, r'`condition\["speaker"\]` must be given, \(3,\), got \(2,\)'),
    "class": ({"speaker": [0, 4, 1]}, r'`condition\["speaker"\]` must be 0 to 3, .* got 4'),
    "negative": ({"speaker": -1}, r'`condition\["speaker"\]` must be 0 to 3, .* got -1'),
    "half": ({"speaker": 0.5}, r'`condition\["speaker"\]` must be whole numbers, int32'),
    "text": ({"speaker": "Ann"}, r'`condition\["speaker"\]` must be int32, got str96'),
    "channels": ({"vector": np.zeros([3, 4])}, r'`condition\["vector"\]` .*\(3, 3\), got \(3, 4\)'),
    "length": ({"mel": GIVEN["mel"][:, 1:]}, r'`condition\["mel"\]` must be given, \(3, 12, 2\)'),
    "empty": ({"memory": np.zeros([3, 0, 3])}, r'`condition\["memory"\]` must have an entry'),
    "unknown": ({"accent": 1}, r"must be a dict with speaker: int32 \[num\], .*, accent"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_condition_that_does_not_fit_is_one_line(name):
    changed, message = WRONG[name]
    model, condition = model_of(*GIVEN), GIVEN | changed
    tokens = np.zeros([NUM, LENGTH], np.int32)
    for call in (
        lambda: drawn(model, condition),
        lambda: model.stream(length=LENGTH, seed=1, condition=condition, num=NUM),
        lambda: model.log_prob(tokens, condition),
        lambda: model.conditionals(tokens, condition),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_all_of_several_conditions_must_be_named():
    model = model_of("mel", "speaker")
    for condition in (None, GIVEN["mel"], {"mel": GIVEN["mel"]}):
        with pytest.raises(ValueError, match=r"must be a dict with .*mel: float32"):
            drawn(model, condition)


class Spoken(tf.Module):
    """A network of no layers, whose conditions the caller describes."""

    def __init__(self):
        super().__init__()
        generator = np.random.default_rng(1)
        self.kinds = tf.Variable(generator.normal(size=[4, 6]), dtype=tf.float32)
        self.kernel = tf.Variable(generator.normal(size=[3, 6]), dtype=tf.float32)
        self.head = tf.Variable(generator.normal(size=[6, 2]), dtype=tf.float32)

    def __call__(self, x, memory, speaker):
        h = tf.tanh(x + tf.gather(self.kinds, speaker)[:, tf.newaxis])
        keys = memory @ self.kernel
        return (h + tf.nn.softmax(tf.matmul(h, keys, transpose_b=True)) @ keys) @ self.head


CONDITIONS = {
    "memory": onepass.Memory([None, None, 3], tf.float32),
    "speaker": tf.TensorSpec([None], tf.int32),
}


def test_conditions_of_a_function_are_described():
    model = Autoregressive(Spoken(), Gaussian(16), conditions=CONDITIONS)
    condition = {name: GIVEN[name] for name in CONDITIONS}
    first, *others = (
        drawn(model, condition, method=method) for method in ("naive", "cached", "auto")
    )
    for other in others:
        np.testing.assert_allclose(other, first, atol=1e-5)
    found = onepass.check_causal(Spoken(), condition=CONDITIONS)
    assert found and found.has_step, found.message
    with pytest.raises(
        ValueError, match=r"`conditions` must be a tf.TensorSpec, onepass.Memory or Frames"
    ):
        Autoregressive(Spoken(), Gaussian(16), conditions={"speaker": 4})


class OwnStep(Spoken):
    def initial_state(self, batch):
        return tf.zeros([batch])

    def step(self, inputs, state, memory, speaker):
        return self(inputs, memory, speaker), state + 1.0


def test_a_step_of_the_network_gets_all_conditions():
    condition = {name: GIVEN[name] for name in CONDITIONS}
    models = (
        Autoregressive(kind(), Gaussian(16), conditions=CONDITIONS) for kind in (Spoken, OwnStep)
    )
    expected, own = (drawn(model, condition, method="cached") for model in models)
    np.testing.assert_allclose(own, expected, atol=1e-5)


def test_a_draft_reads_some_of_the_conditions():
    model, draft = model_of("mel", "speaker"), model_of("speaker")
    condition = given_to(("mel", "speaker"))
    proposed = drawn(model, condition, method="speculative", draft=draft)
    np.testing.assert_array_equal(proposed, drawn(model, condition, method="cached"))
    with pytest.raises(ValueError, match="which has no memory"):
        drawn(model, condition, method="speculative", draft=model_of("memory"))


def test_stored_models_keep_their_conditions(tmp_path):
    model = model_of(*GIVEN)
    loaded = onepass.load(onepass.save(model, tmp_path / "stored"))
    assert loaded.conditions == model.conditions
    assert list(map(type, loaded.conditions.values())) == list(map(type, model.conditions.values()))
    with pytest.raises(ValueError, match="must be 0 to 3"):
        drawn(loaded, GIVEN | {"speaker": [0, 1, 7]})


def test_evaluate_takes_the_rows_of_every_condition():
    model, tokens = model_of(*GIVEN), drawn(model_of(*GIVEN), GIVEN)
    whole = onepass.evaluate(model, tokens, GIVEN)
    parts = onepass.evaluate(model, tokens, GIVEN, batch_size=2)
    assert whole.nats.mean == pytest.approx(parts.nats.mean, rel=1e-5)
    nats = -np.mean(model.log_prob(tokens, GIVEN))
    assert whole.nats.mean == pytest.approx(nats, rel=1e-5)
    with pytest.raises(onepass.UserError, match="`speaker` must have 3 rows, got 2"):
        onepass.evaluate(model, tokens, GIVEN | {"speaker": [0, 1]}, batch_size=2)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (None, r"`condition` must be given, \(3,\), got None"),
        ([0, 1, 4], r"`condition` must be 0 to 3, .* got 4"),
        ([[0], [1], [2]], r"`condition` must be given, \(3,\), got \(3, 1\)"),
    ],
)
def test_fit_refuses_conditions_that_do_not_fit(condition, message):
    batch = {"elements": np.zeros([NUM, LENGTH], np.int32)}
    batch |= {} if condition is None else {"condition": np.array(condition)}
    with pytest.raises(ValueError, match=message):
        onepass.fit(model_of("speaker"), [batch], steps=1, log=lambda line: None)


@pytest.mark.parametrize("source", ["pair", "dict", "function"])
@pytest.mark.usefixtures("eager")
def test_fit_reads_conditions_by_name(source):
    kinds = ("mel", "speaker")
    model = model_of(*kinds)
    tokens, condition = RANDOM.integers(0, LEVELS, [NUM, LENGTH]), given_to(kinds)
    batch = {"elements": tokens, "condition": condition}
    batches = {"pair": (tokens, condition), "dict": [batch], "function": lambda step: batch}[source]
    before = -np.mean(model.log_prob(tokens, condition))
    seen = []

    def loss(model, batch):
        seen.append(sorted(batch["condition"]))
        return -tf.reduce_mean(model.log_prob(batch["elements"], batch["condition"]))

    options = {"optimizer": keras.optimizers.Adam(0.05), "log": lambda line: None}
    outcome = onepass.fit(
        model, batches, steps=2, loss=loss, batch_size=NUM, evaluate=[batch], **options
    )
    assert outcome.step == 2
    assert seen[0] == ["mel", "speaker"]
    assert -np.mean(model.log_prob(tokens, condition)) < before


def images():
    keras.utils.set_random_seed(2)
    pixels, label = keras.Input([None, None, 1]), keras.Input([], dtype="int32", name="label")
    h = layers.ZeroPadding2D([[0, 0], [1, 0]])(pixels)[:, :, :-1]
    h = h + layers.Reshape([1, 1, 1])(layers.Embedding(3, 1, "random_normal")(label) * 20.0)
    h = layers.Dense(8, activation="tanh")(h)
    logits = layers.Dense(4, kernel_initializer=keras.initializers.RandomNormal(stddev=1.0))(h)
    return keras.Model([pixels, label], logits)


def test_images_of_a_class():
    model = Autoregressive(images(), Categorical(4), order="raster")
    subject = Subject(model, (5, 4, 1), [0, 2], num=2)
    for law in ("methods_agree", "what_is_saved_is_the_model"):
        assert check_law(law, subject) == ""
    other = subject.draw(condition=[0, 1])
    assert (other != subject.draws).any((1, 2, 3)).tolist() == [False, True]
    with eagerly():
        batch = other, np.array([0, 2])
        onepass.fit(model, batch, steps=1, batch_size=2, log=lambda line: None)
    with pytest.raises(ValueError, match=r"`condition` must be 0 to 2, .* got 3"):
        model.sample(2, (5, 4, 1), 1, [0, 3])


def test_a_memory_and_its_mask_have_one_axis():
    inputs = [
        keras.Input([None], dtype="int32"),
        keras.Input([None, 3], name="memory"),
        keras.Input([None], dtype="bool", name="mask"),
        keras.Input([None, 2], name="mel"),
    ]
    tokens, memory, mask, mel = inputs
    h = layers.Embedding(LEVELS, 8)(tokens) + layers.Dense(8)(mel)
    shown = layers.Reshape([1, -1])(mask)
    h = h + layers.MultiHeadAttention(1, 4)(h, memory, attention_mask=shown)
    model = Autoregressive(keras.Model(inputs, layers.Dense(LEVELS)(h)), Categorical(LEVELS))
    kinds = {name: isinstance(spec, onepass.Memory) for name, spec in model.conditions.items()}
    assert kinds == {"memory": True, "mask": True, "mel": False}
    assert onepass.check_causal(model.network).left_to_xla == ""
    mask = np.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]], bool)
    hidden = GIVEN["memory"] * np.where(mask, 1.0, 9.0)[..., np.newaxis]
    given = {"memory": GIVEN["memory"], "mel": GIVEN["mel"], "mask": mask}
    first, second = (drawn(model, given | {"memory": x}) for x in (GIVEN["memory"], hidden))
    np.testing.assert_array_equal(first, second)


def test_maps_at_the_rate_of_pixels():
    pixels, drawing = keras.Input([None, None, 1]), keras.Input([None, None, 2], name="drawing")
    h = layers.ZeroPadding2D([[0, 0], [1, 0]])(pixels)[:, :, :-1] + layers.Dense(1)(drawing)
    model = Autoregressive(
        keras.Model([pixels, drawing], layers.Dense(4)(h)), Categorical(4), order="raster"
    )
    given = RANDOM.normal(size=[2, 5, 4, 2]).astype(np.float32)
    x = np.zeros([2, 5, 4, 1], np.int32)
    assert model.log_prob(x, given).shape == x.shape
    with pytest.raises(ValueError, match=r"must be given, \(2, 5, 3, 2\), got \(2, 5, 4, 2\)"):
        model.log_prob(x[:, :, 1:], given)
