"""Every model is asked in one way: the same three methods, with the same arguments."""

import dataclasses
import inspect

import keras
import numpy as np
import pytest
from causal_networks import token_network, wave_network

import onepass
from distill.model import StudentSampler
from onepass.bundles.bundle import Bundle
from onepass.interface import Draw, Model
from onepass.likelihoods import Categorical
from onepass.remote_model import RemoteModel
from onepass.trained import Trained
from pixelcnn.model import ImageSampler
from wavenet.model import SoundSampler

MODELS = (
    onepass.Autoregressive,
    onepass.FlowStudent,
    Trained,
    Bundle,
    RemoteModel,
)


def arguments(method):
    """Return the names, kinds and defaults of a method's arguments, in their order."""
    parameters = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default) for each in parameters]


@pytest.mark.parametrize("method", ["sample", "stream", "log_prob", "read"])
def test_all_models_have_one_signature(method):
    expected = arguments(getattr(Model, method))
    for model in MODELS:
        assert issubclass(model, Model)
        assert arguments(getattr(model, method)) == expected, model


def test_a_request_is_what_the_methods_take():
    fields = [(field.name, field.default) for field in dataclasses.fields(Draw)]
    for method in (Model.sample, Model.stream):
        names = [(name, default) for name, _, default in arguments(method)]
        assert [each for each in names if each[0] not in ("self", "chunk")] == fields
    positional = [name for name, kind, _ in arguments(Model.sample) if kind.name != "KEYWORD_ONLY"]
    assert positional == ["self", "num", "length", "seed", "condition"]


def test_help_describes_every_argument_once():
    for method in (onepass.Autoregressive.sample, onepass.Autoregressive.stream):
        text = inspect.getdoc(method)
        for field in dataclasses.fields(Draw):
            assert text.count(f"\n  {field.name}: ") == 1, field.name


def test_every_option_is_one_of_some_model():
    named = {field.name for field in dataclasses.fields(Draw)}
    samplers = (SoundSampler, StudentSampler, ImageSampler)
    known = set.union(*(set(each.options) for each in (*MODELS[:2], *samplers)), {"row"})
    assert known == named - {"num", "length", "seed", "condition"}


def tokens():
    keras.utils.set_random_seed(1)
    network = token_network(keras.layers.Embedding(3, 4), keras.layers.Dense(3))
    return onepass.Autoregressive(network, Categorical(3))


def of_student():
    return onepass.FlowStudent([wave_network(keras.layers.Dense(2))], tokens().codec)


@pytest.mark.parametrize(
    ("make", "option"), [(tokens, "guidance"), (of_student, "top_k"), (of_student, "weights")]
)
def test_an_option_that_a_model_does_not_have_is_refused_unless_it_says_nothing(make, option):
    model = make()
    for draw in (model.sample, model.stream):
        with pytest.raises(
            onepass.UserError, match=f"`{option}` must not be given: this "
        ) as refused:
            draw(1, 4, **{option: 3})
        assert "\n" not in str(refused.value)
    default = getattr(Draw(), option)
    np.testing.assert_array_equal(model.sample(1, 4, **{option: default}), model.sample(1, 4))


def test_an_unknown_name_is_refused_with_the_closest_known_one():
    with pytest.raises(TypeError, match="argument 'temprature'"):
        tokens().sample(1, 4, temprature=1.0)


@pytest.mark.parametrize("value", [np.array([1, 2]), [0.5, 1.0], np.float32(1.0)])
def test_arrays_are_given_options(value):
    assert Draw(temperature=value).changed_options().keys() == {"temperature"}
    assert Draw(top_p=value).changed_options().keys() == {"top_p"}
