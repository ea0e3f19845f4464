"""A configuration of a network that cannot be is refused, by field, rule and value."""

import dataclasses
import functools

import image_runs
import pytest

from onepass.likelihoods.noise import Initial
from pixelcnn.config import (
    ConditioningConfig,
    DataConfig,
    FactorConfig,
    ImageRules,
    MultiscaleConfig,
    MultiscaleTrainConfig,
    OutputConfig,
    PixelCNNConfig,
)
from pixelcnn.networks.layers import Conditioner

AT_LEAST = {
    (PixelCNNConfig, 1): "layers units output_units",
    (FactorConfig, 1): "blocks units output_units shallow_layers shallow_units",
    (OutputConfig, 1): "components softmax_units",
    (ConditioningConfig, 1): "text_channels map_channels context_frames",
    (ConditioningConfig, 0): "classes action_channels state_channels text_map_channels jitter",
}
RULES = [
    (PixelCNNConfig, {"dilations": ()}, "`dilations` must be one or more numbers of at least 1"),
    (PixelCNNConfig, {"dilations": (1, 0)}, "of at least 1, got (1, 0)."),
    (PixelCNNConfig, {"dropout": 1.0}, "`dropout` must be in [0, 1), got 1.0."),
    (OutputConfig, {"channels": 2}, "`channels` must be 1 or 3, got 2."),
    (OutputConfig, {"levels": 65537}, "`levels` must be between 2 and 65536, got 65537."),
    (OutputConfig, {"likelihood": "softmax", "levels": 257}, "between 2 and 256, got 257."),
    (FactorConfig, {"patch": 3}, "`patch` must be 2, 4 or 8, got 3."),
    (FactorConfig, {"dropout": -0.1}, "`dropout` must be in [0, 1), got -0.1."),
    (MultiscaleConfig, {"base_size": 3}, "`base_size` must be 2, 4, 8, 16, 32 or 64, got 3."),
    (MultiscaleConfig, {"crop": 8}, "power of two, at least twice `base_size`, got 8."),
    (MultiscaleConfig, {"crop": 24}, "power of two, at least twice `base_size`, got 24."),
    (MultiscaleConfig, {"base_flows": (2, 0)}, "`base_flows` must be at least 1 layer each"),
    (ConditioningConfig, {"kind": "words"}, "one of none, class, text, map, video, got words."),
    (ConditioningConfig, {"text_unit": "line"}, "must be character or word, got line."),
    (ConditioningConfig, {"picture_channels": 2}, "`picture_channels` must be 1 or 3, got 2."),
    (ConditioningConfig, {"dropout": 1.0}, "`dropout` must be in [0, 1), got 1.0."),
    (ConditioningConfig, {"kind": "map", "dropout": 0.1}, "0 but for kind class or text, got 0.1."),
    (ConditioningConfig, {"levels": 1}, "`levels` must be between 2 and 4194304, got 1."),
]
RULES += [
    (functools.partial(ImageRules, size=8, channels=3), {field: value}, message)
    for field, value, message in (
        ("size", 0, "`size` must be at least 1, got 0."),
        ("channels", 2, "`channels` must be 1 or 3, got 2."),
        ("reduce", "best", "`reduce` must be area or subsample, got best."),
        ("dev_share", 1.0, "`dev_share` must be in [0, 1), got 1.0."),
    )
]
for (config, least), fields in AT_LEAST.items():
    said = f"at least {least}" if least else "at least 0"
    RULES += [
        (config, {name: least - 1}, f"`{name}` must be {said}, got {least - 1}.")
        for name in fields.split()
    ]


@pytest.mark.parametrize(("kind", "fields", "rule"), RULES)
def test_an_impossible_configuration_is_refused(kind, fields, rule):
    for make in (lambda: kind(**fields), lambda: dataclasses.replace(kind(), **fields)):
        with pytest.raises(ValueError) as caught:
            make()
        assert rule in str(caught.value)


@pytest.mark.parametrize("kind", ["class", "map"])
def test_classes_are_counted_before_they_are_encoded(kind):
    with pytest.raises(ValueError, match=f"^`classes` must be at least 1 for kind {kind}, got 0"):
        Conditioner(ConditioningConfig(kind), Initial(0))


# Parts that do not fit each other: of a model of images, and of factors trained on photographs.
IMAGES = image_runs.config_of("multiscale")
PHOTOGRAPHS = MultiscaleTrainConfig(
    data=DataConfig(16, crop=8),
    network=MultiscaleConfig(4, factor=FactorConfig(patch=2, coordinates=False), crop=4),
    parts=("8", "16"),
)
CROP = "`data.crop` must be a multiple of 8, at most `data.size`, got "
TWICE = "`crop` must be 0 or a power of two, at least twice `factor.patch`"
WITH_COORDINATES = {"factor": FactorConfig(), "crop": 0}
UNFIT = [
    (IMAGES, {"parts": ("5",)}, "`parts` must be of 4, 8.2, 8.3, 8.4, got 5."),
    (IMAGES, {"output": {"channels": 3}}, "`output.channels`"),
    (IMAGES, {"output": {"levels": 16}}, "`output.levels` must be"),
    (IMAGES, {"data": {"bits": 12}}, "`output.levels` must be 4096, by `data.bits`, got 256."),
    (
        IMAGES,
        {"data": {"channels": 3, "bits": 12}, "output": {"channels": 3, "levels": 4096}},
        "`data.bits` must be 8 in colour, got 12.",
    ),
    (IMAGES, {"data": {"size": 12}}, "`size` must be 4 times a power of two"),
    (PHOTOGRAPHS, {"network": WITH_COORDINATES}, "`data.crop` must be 0 with `network.factor.coo"),
    (PHOTOGRAPHS, {"data": {"crop": 12}}, CROP + "12."),
    (PHOTOGRAPHS, {"data": {"crop": 24}}, CROP + "24."),
    (PHOTOGRAPHS, {"parts": ()}, "`parts` must be without 4, the base, with `data.crop`"),
    (PHOTOGRAPHS, {"data": {"shift": 1}}, "`shift` must be 0 with `data.crop`, got 1."),
    (PHOTOGRAPHS, {"data": {"reduce": "subsample"}}, "`data.reduce` must be area with `data.crop`"),
    (PHOTOGRAPHS, {"network": {"crop": 2}}, TWICE),
]


@pytest.mark.parametrize(("config", "fields", "rule"), UNFIT)
def test_parts_of_a_configuration_that_do_not_fit_are_refused(config, fields, rule):
    with pytest.raises(ValueError) as caught:
        image_runs.replaced(config, **fields)
    assert str(caught.value).startswith(rule)
