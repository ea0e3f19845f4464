"""A PixelCNN of 12-bit images: trained, evaluated and sampled without a scaling to 8 bits."""

import json
import math

import image_runs
import numpy as np
import pytest
from PIL import Image
from runs import eagerly

import onepass
from onepass.interface import Draw
from onepass.likelihoods import PixelMixture
from pixelcnn import training
from pixelcnn.density import ImageDensity
from pixelcnn.model import ImageSampler, load

OPTIONS = """--conditioning.kind none --data.size 8 --output.components 2 --network.layers 1
    --network.units 8 --network.output-units 8 --data.batch-size 4 --loop.num-steps 3
    --loop.evaluate-every-steps 3 --optimizer.warmup-steps 2 --optimizer.learning-rate 0.01"""

pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of images, of a run that was trained on them, and of samples."""
    folder = tmp_path_factory.mktemp("deep")
    draws = np.random.default_rng(0)
    (folder / "images").mkdir()
    for i in range(12):
        ramp = np.linspace(0, 3800, 8)[:, None] + draws.integers(0, 100, (8, 8))
        Image.fromarray(ramp.astype(np.uint16)).save(folder / "images" / f"{i}.png")
    words = [*OPTIONS.split(), "--data", str(folder / "images"), "--workdir", str(folder / "run")]
    with eagerly(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.EvaluationCallback, "_can_sample", lambda _: False)
        assert onepass.main(["train", "pixelcnn-cpu-32", *words]) == 0
    return folder


def test_the_command_finds_out_that_they_are_grey_and_their_probability_is_of_twelve_bits(folder):
    model = load(folder / "run")
    assert (model.config.data.channels, model.config.data.bits) == (1, 12)
    assert (model.config.output.channels, model.config.output.levels) == (1, 4096)
    image = np.asarray(Image.open(folder / "images" / "0.png"))[None, ..., None]
    bits = -model.log_prob(image) / math.log(2.0) / image.size
    assert 7.0 < bits[0] < 14.0
    assert model.log_prob(np.minimum(image + 1, 4095))[0] != model.log_prob(image)[0]
    with pytest.raises(ValueError, match=r"`images` must be in 0 to 4,095, got .* to 5,000"):
        model.log_prob(np.full_like(image, 5000))


def test_probabilities_of_all_levels_sum_to_one():
    for levels in (4096, 65536):
        mixture = PixelMixture(levels, 1, 2, -12.0)
        parameters = np.array([0.3, -0.2, 0.1, -0.4, -5.0, -9.0], np.float32)
        each = mixture.log_prob(np.tile(parameters, (levels, 1)), np.arange(levels)[:, None])
        assert np.sum(np.exp(np.asarray(each, np.float64))) == pytest.approx(1.0, abs=1e-4)


def test_samples_are_sixteen_bit_files_of_the_levels(folder):
    words = ["--out", str(folder / "out"), "--num", "1", "--prime-rows", "4"]
    words += ["--prime", str(folder / "images" / "1.png")]
    assert onepass.main(["sample", str(folder / "run"), *words]) == 0
    drawn = np.asarray(Image.open(folder / "out" / "sample_0_0.png"))
    assert drawn.dtype == np.uint16 and drawn.max() < 4096 and len(np.unique(drawn)) > 30
    given = np.asarray(Image.open(folder / "images" / "1.png"))
    np.testing.assert_array_equal(drawn[:4], given[:4])
    assert np.asarray(Image.open(folder / "out" / "grid.png")).dtype == np.uint8


def test_evaluation_is_beside_a_lossless_file_of_the_same_levels(folder, capsys, monkeypatch):
    monkeypatch.setattr("pixelcnn.evaluation._seconds", lambda *_: 0.125)
    assert onepass.main(["evaluate", str(folder / "run"), "--json", "--all"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["codec"].keys() == {"png"} and 6.0 < figures["codec"]["png"] < 30.0
    bits = figures["measures"]["bits_per_dim"]
    assert (bits["n"], bits["low"] < bits["mean"] < bits["high"]) == (12, True)


def test_a_bundle_of_deeper_images_is_refused_and_a_folder_is_not(folder, capsys, monkeypatch):
    monkeypatch.setattr("pixelcnn.evaluation._seconds", lambda *_: 0.125)
    run = str(folder / "run")
    assert onepass.main(["export", run, "--out", str(folder / "model" / "1")]) == 2
    assert "A bundle draws 8-bit images, got 12; `--bare`" in capsys.readouterr().err
    assert onepass.main(["export", run, "--bare", "--out", str(folder / "bare")]) == 0
    assert load(folder / "bare").front.bits == 12
    assert "16-bit PNG" in (folder / "bare" / "card.md").read_text()


def test_a_multiscale_model_draws_and_judges_the_same_levels():
    config = image_runs.replaced(
        image_runs.config_of("multiscale"),
        conditioning={"kind": "none"},
        data={"bits": 12},
        output={"levels": 4096, "min_log_scale": -9.8},
    )
    density = ImageDensity(config)
    with eagerly():
        scales = next(ImageSampler(density).images(Draw(1, 8, 3, {})))
    assert {scale.dtype for scale in scales} == {np.dtype(np.uint16)}
    assert 256 < scales[-1].max() < 4096
    nats = density.nats({"levels": scales[-1][None].astype(np.int32)})
    assert 8.0 < -sum(float(n[0]) for n in nats.values()) / 64 / math.log(2.0) < 16.0
