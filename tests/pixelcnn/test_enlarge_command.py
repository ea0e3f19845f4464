"""Factors trained on squares of photographs enlarge one, and are evaluated next to files."""

import functools

import image_runs
import numpy as np
import pytest
from image_files import fill, levels_of
from image_runs import ADAM, TINY, trained
from made_once import own_folder
from PIL import Image

import onepass
from onepass.foundation.metrics import read_metrics
from onepass.foundation.rules import UserError
from onepass.replicator.training.config import LoopConfig
from pixelcnn.config import (
    DataConfig,
    FactorConfig,
    MultiscaleConfig,
    MultiscaleTrainConfig,
    OutputConfig,
)
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.evaluation import evaluate
from pixelcnn.measures import codec_bits_by_scale, webp_bits_per_dim
from pixelcnn.model import load
from pixelcnn.sampling import enlargement

FACTOR = FactorConfig("A", 1, 8, 8, 2, 1, 4, coordinates=False)


# Factors from 4 to 16 pixels, trained on squares of 8.
CONFIG = MultiscaleTrainConfig(
    output=OutputConfig(components=2, channels=3),
    data=DataConfig(size=16, batch_size=2, crop=8),
    optimizer=ADAM,
    loop=LoopConfig(num_steps=2, evaluate_every_steps=2, report_every_steps=1),
    network=MultiscaleConfig(4, TINY, FACTOR, crop=4),
    parts=("8", "16"),
)


@functools.cache
def photographs():
    """A folder of three photographs for train and two for dev."""
    path = own_folder() / "photographs"
    fill(path, [f"train/{name}.png" for name in "abc"], (16, 12))
    fill(path, ["dev/d.png", "dev/e.png"], (8, 16))
    return path


@functools.cache
def run():
    """The directory of a run."""
    trained(CONFIG, photographs(), own_folder() / "run_upsample")
    return own_folder() / "run_upsample"


@functools.cache
def model():
    """Return the run's model."""
    return image_runs.opened(run())


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    """The run is loaded once, so that its programs are made once."""
    monkeypatch.setattr("pixelcnn.model.load", lambda path: model())


@pytest.fixture
def start(tmp_path):
    """The file of a photograph of 4x3 pixels."""
    fill(tmp_path, ["start.png"], (4, 3))
    return tmp_path / "start.png"


def sample(start, out, words=""):
    """The exit status of `onepass sample --start`."""
    given = ["sample", str(run()), "--start", str(start), "--out", str(out), *words.split()]
    return onepass.main(given)


@pytest.mark.slow
def test_every_scale_of_a_photograph_is_written_and_passes_are_counted(start, tmp_path, capsys):
    out = tmp_path / "out"
    assert sample(start, out, "--seed 3") == 0
    assert sorted(path.name for path in out.iterdir()) == ["sample_3_0.png", "sample_3_0_8.png"]
    large, middle = levels_of(out / "sample_3_0.png"), levels_of(out / "sample_3_0_8.png")
    assert (large.shape, middle.shape) == ((12, 16, 3), (6, 8, 3))
    np.testing.assert_array_equal(large[::2, ::2], middle)
    np.testing.assert_array_equal(middle[::2, ::2], levels_of(start))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{out}: 1 image of 16x12 pixels in ")
    assert second == "passes: 6 per image, in 6 tiles"


def test_python_draws_what_the_command_writes_over_files_if_asked_to(start, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sample_0_0.png").write_bytes(b"mine")
    assert sample(start, tmp_path / "out", "--num 2 --size 8") == 2
    assert "sample_0_0.png already exists; --overwrite replaces it." in capsys.readouterr().err
    assert sample(start, tmp_path / "out", "--num 2 --size 8 --overwrite") == 0
    drawn = model().sample(prefix=levels_of(start), length=8, num=2)
    for row, image in enumerate(drawn):
        np.testing.assert_array_equal(levels_of(tmp_path / "out" / f"sample_0_{row}.png"), image)
    with Image.open(start) as image:  # which a camera says to turn
        exif = image.getexif()
        exif[274] = 6
        image.save(tmp_path / "turned.png", exif=exif)
    assert sample(tmp_path / "turned.png", tmp_path / "turned", "--size 8") == 0
    assert levels_of(tmp_path / "turned" / "sample_0_0.png").shape == (8, 6, 3)


def test_ctrl_c_keeps_the_scales_that_are_finished(start, tmp_path, capsys, monkeypatch):
    whole = enlargement.Enlarger._group

    def interrupted(self, side, *arguments):
        if side == 16:
            raise KeyboardInterrupt
        return whole(self, side, *arguments)

    monkeypatch.setattr(enlargement.Enlarger, "_group", interrupted)
    out = tmp_path / "out"
    assert sample(start, out) == 130
    assert [path.name for path in out.iterdir()] == ["sample_0_0_8.png"]
    assert "interrupted: keeping 1 of 2 scales" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size", "words", "message"),
    [
        ((5, 4), "", "must have a longer side of 4 or 8 pixels, got 5x4."),
        ((8, 8), "--size 8", "must have a longer side of 4 pixels, got 8x8."),
        ((4, 4), "--size 12", "The model draws 4, 8, 16 pixels a side, not 12."),
        ((4, 4), "--guidance 1", "`--guidance` is not for a photograph to enlarge."),
        ((4, 4), "--prime-rows 1", "`--prime-rows` is not for a photograph to enlarge."),
        ((4, 4), "--num 0", "`--num` must be at least 1, got 0."),
    ],
)
def test_what_cannot_be_enlarged_is_refused(size, words, message, tmp_path, capsys):
    fill(tmp_path, ["start.png"], size)
    assert sample(tmp_path / "start.png", tmp_path / "out", words) == 2
    assert message in capsys.readouterr().err


def test_factors_alone_need_an_image_to_start_from():
    with pytest.raises(UserError, match="The model enlarges images: name one to start from"):
        model().sample()


def test_bits_of_every_scale_count_the_numbers_that_it_adds():
    dataset = ImageDataset.for_evaluation(photographs(), model().config, (), None)
    figures = evaluate(model(), dataset)
    bits = {name: measure["mean"] for name, measure in figures["measures"].items()}
    assert set(bits) == {"bits_per_dim", "bits_per_dim_8x8", "bits_per_dim_16x16"}
    # Of the 15 parts that are drawn, the first doubling draws 3 and the second 12.
    mean = (3 * bits["bits_per_dim_8x8"] + 12 * bits["bits_per_dim_16x16"]) / 15
    assert bits["bits_per_dim"] == pytest.approx(mean, rel=1e-6)
    nats = [model().network.nats(batch) for batch in dataset.dev()]
    of_16 = np.mean([-sum(each[f"16.{group}"].numpy()[0] for group in (2, 3, 4)) for each in nats])
    assert bits["bits_per_dim_16x16"] == pytest.approx(of_16 / np.log(2) / (96 * 3), rel=1e-6)
    assert figures["dev"]["pictures"] == 2 and set(figures["codec_by_scale"]) == {8, 16}
    last = [line for line in read_metrics(run()) if "dev_bits_per_dim" in line][-1]
    assert last["dev_bits_per_dim"] == pytest.approx(bits["bits_per_dim"], rel=1e-6)


def test_the_shares_of_lossless_files_add_up_to_the_files():
    image = levels_of(photographs() / "train" / "a.png")[:8]
    found = codec_bits_by_scale([image], 16, [8, 16])
    files = {
        step: webp_bits_per_dim(np.ascontiguousarray(image[::step, ::step])) for step in (1, 4)
    }
    added = files[1] * image.size - files[4] * image.size / 16
    assert found["codec"]["webp"] == pytest.approx(added / (image.size * 15 / 16))
    shares = [found["codec_by_scale"][size]["webp"] for size in (8, 16)]
    total = image.size * (shares[0] * 3 / 16 + shares[1] * 12 / 16)
    assert total == pytest.approx(added)
    assert codec_bits_by_scale([image], 16, []) == {"codec": {}, "codec_by_scale": {}}


def test_the_command_prints_the_share_of_every_scale(capsys):
    assert onepass.main(["evaluate", str(run())]) == 0
    out = capsys.readouterr().out
    assert "files of 8, less those of 4, per number: WebP " in out
    assert "files of 16, less those of 8, per number: WebP " in out


@pytest.mark.slow
def test_a_model_folder_of_factors_alone_draws_what_the_run_draws(start, tmp_path, capsys):
    assert onepass.main(["export", str(run()), "--out", str(tmp_path / "m" / "1")]) == 2
    assert "enlarges photographs of any shape in tiles" in capsys.readouterr().err
    assert onepass.main(["export", str(run()), "--out", str(tmp_path / "m"), "--bare"]) == 0
    expected = model().sample(prefix=levels_of(start))
    np.testing.assert_array_equal(load(tmp_path / "m").sample(prefix=levels_of(start)), expected)
