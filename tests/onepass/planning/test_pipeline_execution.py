"""Stages of a network, cut, exported and run by every schedule, give the gradients of the whole."""

import jax
import numpy as np
import pytest
import tensorflow as tf

from onepass.foundation.rules import UserError
from onepass.planning.pipeline import execution
from onepass.planning.pipeline.export import Stage, export_stages, split
from onepass.planning.pipeline.schedule import BLOCKS, schedule, simulate

pytestmark = pytest.mark.usefixtures("quick_compilation")
STAGES, WIDTH, MICROBATCHES, ROWS = 4, 3, 5, 2


def variables_of(number):
    rng = np.random.default_rng(number)
    shapes = {"kernel": [WIDTH, WIDTH], "bias": [WIDTH]}
    return {
        f"{name}_{number}": tf.Variable(rng.normal(size=shape).astype(np.float32))
        for name, shape in shapes.items()
    }


SCALE = tf.Variable(1.5)


def stage_of(number):
    """A layer; the first reads the batch, the last the targets and a frozen variable."""
    variables = variables_of(number)
    kernel, bias = variables.values()

    def run(given):
        hidden = tf.tanh(tf.matmul(given["x"], kernel) + bias)
        if number < STAGES - 1:
            return {"x": hidden}
        apart = tf.square(SCALE * hidden - tf.gather(tf.eye(WIDTH), given["target"]))
        return {"loss": tf.reduce_mean(apart)}

    read = {0: ("x",), STAGES - 1: ("target",)}.get(number, ())
    return Stage(run, read, variables, {"scale": SCALE} if number == STAGES - 1 else {})


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folder, a batch, and the loss and gradients of the whole network."""
    stages = [stage_of(number) for number in range(STAGES)]
    rng = np.random.default_rng(9)
    batch = {
        "x": rng.normal(size=[MICROBATCHES * ROWS, WIDTH]).astype(np.float32),
        "target": rng.integers(0, WIDTH, MICROBATCHES * ROWS).astype(np.int32),
    }
    spec = {name: tf.TensorSpec([ROWS, *a.shape[1:]], a.dtype) for name, a in batch.items()}
    folder = export_stages(tmp_path_factory.mktemp("stages"), stages, spec)
    variables = {name: v for stage in stages for name, v in stage.variables.items()}

    @tf.function(jit_compile=True, autograph=False)
    def whole():
        with tf.GradientTape() as tape:
            given = {name: tf.constant(array) for name, array in batch.items()}
            for stage in stages:
                given |= stage.run(given)
        return given["loss"], tape.gradient(given["loss"], variables)

    return folder, batch, *whole()


@pytest.mark.parametrize("name", BLOCKS)
def test_a_schedule_gives_the_gradients_and_holds_what_was_simulated(name, exported):
    folder, batch, loss, gradients = exported
    made = schedule(name, STAGES if name == "1f1b" else STAGES // 2, MICROBATCHES)
    pipeline = execution.Pipeline(folder, made, jax.devices()[:1] * made.num_devices)
    value, found = pipeline.gradients(batch)
    assert value == pytest.approx(float(loss), rel=1e-6)
    assert found.keys() == gradients.keys()
    joined = [np.concatenate([np.ravel(a[n]) for n in gradients]) for a in (found, gradients)]
    assert np.linalg.norm(joined[0] - joined[1]) < 1e-6 * np.linalg.norm(joined[1])
    assert tuple(pipeline.peaks) == simulate(made).peaks


def test_what_is_counted_is_all_that_is_alive(exported, monkeypatch):
    folder, batch, _, _ = exported
    made = schedule("v-min", 2, MICROBATCHES)
    pipeline = execution.Pipeline(folder, made, jax.devices()[:1] * 2)
    pipeline.gradients(batch)
    before, make, seen = {id(a) for a in jax.live_arrays()}, execution._Step.make, []

    def watched(step, each):
        make(step, each)
        alive = [array for array in jax.live_arrays() if id(array) not in before]
        others = [*step.found.values(), *step._arrived.values()]
        known = {id(a) for arrays in [*step._kept.values(), *others] for a in arrays.values()}
        known |= {id(loss) for loss in step.losses}
        assert {id(array) for array in alive} <= known
        kept = [array for arrays in step._kept.values() for array in arrays.values()]
        seen.append(sum(array.nbytes for array in kept))

    monkeypatch.setattr(execution._Step, "make", watched)
    pipeline.gradients(batch)
    assert max(pipeline.peak_bytes) <= max(seen) <= sum(pipeline.peak_bytes)
    assert seen[-1] == 0


def test_halves_of_a_backward_pass_give_its_gradients():
    """Convolution (whose gradient asks for shapes), an input that is passed on, one without use."""
    kernel, bias = tf.Variable(np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 2, 3)), 0.3
    last = tf.Variable([0.5, -1.0, 2.0])

    def run(given):
        hidden = tf.nn.conv1d(given["x"], kernel, 2, "VALID") + bias
        return {"y": tf.exp(tf.tanh(hidden)) * last, "side": given["side"]}

    spec = {
        "x": tf.TensorSpec([2, 6, 2]), "side": tf.TensorSpec([2]), "unused": tf.TensorSpec([3]),
        "labels": tf.TensorSpec([2], tf.int32),
    }  # fmt: skip
    parts = split(run, spec, {"kernel": kernel, "last": last})
    rng = np.random.default_rng(1)
    drawn = {n: tf.constant(rng.normal(size=s.shape), s.dtype) for n, s in spec.items()}
    forward = parts["F"].run(drawn)
    arrived = {f"gradient/{name}": tf.sin(forward[name]) for name in ("y", "side")}
    backward = parts["B"].run(only(parts["B"], forward | arrived))
    weights = parts["W"].run(only(parts["W"], forward | backward))
    assert not any(name.startswith("gradient/") for name in parts["W"].inputs)
    floats = {name: drawn[name] for name in ("x", "side", "unused")}
    with tf.GradientTape() as tape:
        tape.watch(floats)
        outputs = list(run(drawn).values())
    sources = floats | {"kernel": kernel, "last": last}
    expected = tape.gradient(outputs, sources, list(arrived.values()), "zero")
    found = backward | weights
    for name, value in expected.items():
        np.testing.assert_allclose(found[f"gradient/{name}"], value, rtol=1e-5, atol=1e-6)
    # Nothing that only W makes is made by B, and the other way round.
    assert {n for n in found if n.startswith("gradient/")} == {f"gradient/{n}" for n in expected}


def only(part, tensors):
    return {name: tensors[name] for name in part.inputs}


@pytest.mark.parametrize(
    ("devices", "microbatches", "given", "said"),
    [
        (3, 5, 3, "`schedule` must have 4 stages, got 3."),
        (4, 4, 4, "`batch` must have a multiple of 4 rows, got {'x': 10, 'target': 10}."),
        (4, 5, 1, "`devices` must be at least 4, got 1."),
    ],
)
def test_what_does_not_fit_is_refused(devices, microbatches, given, said, exported):
    folder, batch, _, _ = exported
    made = schedule("1f1b", devices, microbatches)
    with pytest.raises(UserError) as caught:
        execution.Pipeline(folder, made, jax.devices()[:1] * given).gradients(batch)
    assert str(caught.value) == said


def test_a_network_without_a_loss_is_refused(tmp_path):
    stage = Stage(lambda given: {"y": 2.0 * given["x"]}, ("x",), {})
    with pytest.raises(ValueError, match="last stage must return `loss` only"):
        export_stages(tmp_path, [stage], {"x": tf.TensorSpec([2])})
