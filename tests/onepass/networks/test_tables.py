"""A sequence longer than a table of learned positions is one error that names the layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from runs import eagerly

import onepass
from onepass.bundles.errors import ServingError
from onepass.likelihoods import Categorical, Gaussian, Integers
from onepass.model import Autoregressive

layers, ops = keras.layers, keras.ops
LEVELS, WIDTH = 6, 4

READS = {
    "embedding": lambda layer, x: layer.table(ops.arange(ops.shape(x)[1])),
    "gather": lambda layer, x: tf.gather(layer.rows, tf.range(tf.shape(x)[1])),
    "gather of counts": lambda layer, x: tf.gather(
        layer.rows, tf.cumsum(tf.ones_like(x[..., 0], tf.int32), 1) - 1
    ),
    "slice": lambda layer, x: layer.rows[: tf.shape(x)[1]],
    "slice of keras": lambda layer, x: ops.slice(layer.rows, (0, 0), (ops.shape(x)[1], WIDTH)),
}


class Positions(layers.Layer):
    def __init__(self, read, rows, **options):
        super().__init__(**options)
        self.read, self.num = read, rows
        self.table = layers.Embedding(rows, WIDTH, name="where")

    def build(self, shape):
        self.table.build(shape)
        self.rows = self.table.embeddings

    def call(self, inputs):
        return inputs + self.read(self, inputs)


def network_of(read, rows):
    keras.utils.set_random_seed(1)
    tokens = keras.Input([None], dtype="int32")
    h = Positions(read, rows, name="where")(layers.Embedding(LEVELS, WIDTH)(tokens))
    h = layers.Conv1D(WIDTH, 2, padding="causal", activation="tanh")(h)
    return keras.Model(tokens, layers.Dense(LEVELS)(h))


def model_of(read, rows):
    return Autoregressive(network_of(read, rows), Categorical(LEVELS), codec=Integers(LEVELS))


def tokens_of(length):
    return np.random.default_rng(0).integers(0, LEVELS, [2, length]).astype(np.int32)


def fitted(model, tokens):
    with eagerly():
        onepass.fit(model, tokens, steps=1, log=lambda line: None)


CALLS = {
    "sample": lambda model, n: model.sample(2, n, 0),
    "fixed-point": lambda model, n: model.sample(2, n, 0, method="fixed-point"),
    "naive": lambda model, n: model.sample(2, n, 0, method="naive"),
    "log_prob": lambda model, n: model.log_prob(tokens_of(n)),
    "traced": lambda model, n: tf.function(model.log_prob, autograph=False)(
        tf.constant(tokens_of(n))
    ),
    "conditionals": lambda model, n: model.conditionals(tokens_of(n)),
    "fit": lambda model, n: fitted(model, tokens_of(n)),
    "evaluate": lambda model, n: onepass.evaluate(model, tokens_of(n)),
    "compress": lambda model, n: onepass.compress(model, tokens_of(n)),
}


@pytest.mark.parametrize("rows", [16, 30])  # shorter and longer than what causality is checked on
@pytest.mark.parametrize("read", READS)
def test_every_method_names_the_table_and_takes_its_length(read, rows):
    """Every method with one way to read a table, one method with every way."""
    model = model_of(READS[read], rows)
    for name in CALLS if read == "embedding" else ("log_prob",):
        call = CALLS[name]
        if name in ("sample", "log_prob", "fit"):  # the others end in the same places
            call(model, rows)
        with pytest.raises(ValueError) as caught:
            call(model, rows + 1)
        line = str(caught.value)
        assert line.startswith(f"`network` cannot take {rows + 1} elements: ")
        assert f"the table of positions in its layer `where` has {rows} rows" in line
        assert "\n" not in line
    with pytest.raises(ValueError, match=f"has {rows} rows"):
        model.stream(length=rows + 1, seed=0)  # at the call


def test_a_longer_sequence_after_a_short_one_and_a_stored_model_know_their_table(tmp_path):
    model = model_of(READS["embedding"], 30)
    rows = model.network.get_layer("where").rows
    rows.assign(np.random.default_rng(0).normal(size=rows.shape, scale=5.0))
    model.network.layers[-1].kernel.assign(4.0 * model.network.layers[-1].kernel)
    stored = onepass.load(onepass.save(model, tmp_path / "stored"))
    for length in (6, 30):
        drawn = model.sample(2, length, 0)
        np.testing.assert_array_equal(drawn, model.sample(2, length, 0, method="fixed-point"))
        np.testing.assert_array_equal(drawn, stored.sample(2, length, 0))
    for call in (CALLS["sample"], CALLS["log_prob"]):
        with pytest.raises(ValueError, match=r"cannot take 31 elements: .* has 30 rows"):
            call(stored, 31)


@pytest.mark.slow
def test_a_bundle_knows_its_table(tmp_path):
    model = model_of(READS["embedding"], 30)
    for length in (31, None):
        with pytest.raises(ValueError, match=r"cannot take|must be given"):
            onepass.export(model, tmp_path / "models" / "1", length=length)
    bundle = onepass.load(onepass.export(model, tmp_path / "models" / "1", length=30))
    np.testing.assert_array_equal(bundle.sample(2, 30, 0), model.sample(2, 30, 0))
    with pytest.raises(ServingError, match="`num_samples` must be between 1 and 30"):
        bundle.sample(2, 31, 0)


FREE = {
    "clipped": lambda layer, x: tf.gather(
        layer.rows, tf.minimum(tf.range(tf.shape(x)[1]), layer.num - 1)
    ),
    "in blocks": lambda layer, x: tf.gather(layer.rows, tf.range(tf.shape(x)[1]) // 8),
    "in turn": lambda layer, x: tf.gather(layer.rows, tf.range(tf.shape(x)[1]) % layer.num),
    "a bound beyond": lambda layer, x: tf.reduce_sum(layer.rows[:1000], 0),
    "a part": lambda layer, x: layer.rows[1, :WIDTH],
}


@pytest.mark.parametrize("read", FREE)
def test_tables_that_are_long_enough_limit_nothing(read):
    model = model_of(FREE[read], 12)
    assert model.log_prob(tokens_of(90)).shape == [2, 90]
    if read == "in blocks":
        text = r"cannot take 97 elements: .* 12 rows and row 12 is read"
        with pytest.raises(ValueError, match=text):
            model.log_prob(tokens_of(97))


def test_images_have_tables_of_rows_and_columns():
    keras.utils.set_random_seed(1)
    images = keras.Input([None, None, 1])

    class Grid(layers.Layer):
        def build(self, shape):
            self.rows = self.add_weight(shape=[5, 1, 2])
            self.columns = self.add_weight(shape=[7, 2])

        def call(self, x):
            above = tf.gather(self.rows, tf.range(tf.shape(x)[1]))
            return 0.0 * x + above + tf.gather(self.columns, tf.range(tf.shape(x)[2]))

    model = Autoregressive(
        keras.Model(images, Grid(name="grid")(images)), Gaussian(16), order="raster"
    )
    assert model.sample(1, (5, 7, 1), 0).shape == (1, 5, 7, 1)
    for shape, rows in (((6, 7, 1), 5), ((5, 8, 1), 7)):
        with pytest.raises(ValueError, match=f"layer `grid` has {rows} rows"):
            model.sample(1, shape, 0)
        with pytest.raises(ValueError, match=f"layer `grid` has {rows} rows"):
            model.log_prob(np.zeros([2, *shape], np.int32))


def test_a_student_has_tables_too():
    waves = keras.Input([None, 1])
    h = Positions(READS["embedding"], 12, name="where")(layers.Dense(WIDTH)(waves))
    network = keras.Model(waves, layers.Dense(2)(h))
    student = onepass.FlowStudent([network], onepass.likelihoods.Reals())
    assert student.sample(1, 12, 0).shape == (1, 12)
    with pytest.raises(ValueError, match=r"cannot take 13 elements: .* has 12 rows"):
        student.sample(1, 13, 0)
