"""`onepass compress` and `onepass decompress`, from files to files."""

import io
import pathlib
import struct
import types
import zlib

import numpy as np
import pytest
import soundfile
from image_densities import images_for, model_of
from PIL import Image

from onepass.command import compression_command
from onepass.command.array_files import FILES, rows_of
from onepass.command.verbs import main
from onepass.compression.container import Container, Kind, read
from onepass.foundation.rules import UserError
from wavenet.data import audio, decoding


@pytest.fixture(scope="module")
def model():
    return model_of("PixelCNN")


@pytest.fixture
def here(tmp_path, monkeypatch, model):
    """A folder with images a.png to c.png, where every name names the model."""
    monkeypatch.setattr(compression_command, "load", lambda path: model)
    for name, image in zip("abc", images_for(model, 3), strict=True):
        Image.fromarray(image[..., 0]).save(tmp_path / f"{name}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mistake(capsys, *words):
    """The one line on standard error of a command that ends with status 2."""
    assert main([str(word) for word in words]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    return printed


def test_files_come_back_as_they_were(here, model):
    words = ["compress", "m", "a.png", "b.png", "c.png", "--out", "new/folder/x.onepass"]
    assert main([*words, "--condition", "cat", "dog", "1"]) == 0
    assert main(["decompress", "m", "new/folder/x.onepass", "--out", "back"]) == 0
    names = sorted(path.name for path in (here / "back").iterdir())
    assert names == ["a.png", "b.png", "c.png"]
    for name, image in zip(names, images_for(model, 3), strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(here / "back" / name)), image[..., 0])


def test_what_is_there_is_not_written_over_unasked(here, capsys, model):
    packed = ["compress", "m", "a.png", "--condition", "1", "--out", "x.onepass"]
    unpacked = ["decompress", "m", "x.onepass", "--out", "back"]
    (here / "x.onepass").write_bytes(b"mine")
    line = "onepass: {} already exists; --overwrite replaces it.\n"
    assert mistake(capsys, *packed) == line.format("x.onepass")
    assert (here / "x.onepass").read_bytes() == b"mine"
    assert main([*packed, "--overwrite"]) == 0
    (here / "back").mkdir()
    (here / "back" / "a.png").write_bytes(b"mine")
    assert mistake(capsys, *unpacked) == line.format("back/a.png")
    assert (here / "back" / "a.png").read_bytes() == b"mine"
    assert main([*unpacked, "--overwrite"]) == 0
    found = np.asarray(Image.open(here / "back" / "a.png"))
    np.testing.assert_array_equal(found, images_for(model, 3)[0, ..., 0])


def test_a_file_of_more_elements_than_asked_for_is_refused(here, capsys):
    main(["compress", "m", "a.png", "b.png", "--condition", "1", "--out", "x.onepass"])
    words = ["decompress", "m", "x.onepass", "--out", "back", "--max-elements"]
    assert "at most `max_elements` = 127 elements, got 128" in mistake(capsys, *words, 127)
    assert not (here / "back").exists()
    assert main([*words, "128"]) == 0


def test_a_damaged_cut_or_missing_file_is_refused_and_nothing_is_written(here, capsys):
    main(["compress", "m", "a.png", "--condition", "1", "--out", "x.onepass"])
    data = (here / "x.onepass").read_bytes()
    changed = bytearray(data)
    changed[-20] ^= 1
    for name, content in (("cut", data[:-3]), ("changed", bytes(changed)), ("other", b"hello")):
        (here / name).write_bytes(content)
        assert "compress" in mistake(capsys, "decompress", "m", name, "--out", "back")
    assert "gone" in mistake(capsys, "decompress", "m", "gone", "--out", "back")
    assert not (here / "back").exists()


def test_a_name_in_a_file_cannot_leave_the_folder(here, model):
    main(["compress", "m", "a.png", "--condition", "1", "--out", "x.onepass"])
    found = read((here / "x.onepass").read_bytes())
    evil = Container(**(vars(found) | {"description": found.description | {"names": ["../../e"]}}))
    (here / "x.onepass").write_bytes(evil.to_bytes())
    assert main(["decompress", "m", "x.onepass", "--out", "back"]) == 0
    assert [path.name for path in (here / "back").iterdir()] == ["e.png"]


HOSTILE = {
    ".bashrc.png": "_.bashrc.png",
    "-rf.png": "_-rf.png",
    "--.png": "_--.png",
    "~.png": "_~.png",
    "con.png": "_con.png",
    "LPT1.x.png": "_LPT1.x.png",
    "..": "unnamed.png",
    "/etc/": "etc.png",
    " .. .png": "_.. .png",
    "a\\..\\.x": "_.png",
    "a\n\0b.png": "ab.png",
}
KEPT = ("a.png", "ä-1 (b).png", "x.tif", "console.png")


def renamed(here, capsys, names):
    """The names of the files that are written for stored names, and what is printed of them."""
    words = ["compress", "m", *["a.png"] * len(names), "--condition", "1", "--verify", "never"]
    assert main([*words, "--out", "x.onepass", "--overwrite"]) == 0
    found = read((here / "x.onepass").read_bytes())
    described = found.description | {"names": names}
    evil = Container(**(vars(found) | {"description": described}))
    (here / "x.onepass").write_bytes(evil.to_bytes())
    capsys.readouterr()
    assert main(["decompress", "m", "x.onepass", "--out", "back"]) == 0
    assert {path.parent for path in here.rglob("*.png")} == {here, here / "back"}
    return {path.name for path in (here / "back").iterdir()}, capsys.readouterr().err


def test_no_name_in_a_file_is_hidden_an_option_or_a_device(here, capsys):
    names, said = renamed(here, capsys, [*HOSTILE, *KEPT])
    assert names == {*HOSTILE.values(), "a.png", "ä-1 (b).png", "x.png", "console.png"}
    first = "11: .bashrc.png as _.bashrc.png, -rf.png as _-rf.png, --.png as _--.png"
    assert said.startswith(f"written by another name than the file says: {first}")
    assert said.count("\n") == 1


def test_names_that_become_equal_where_case_or_accents_do_not_count_stay_apart(here, capsys):
    names, said = renamed(here, capsys, ["a.png", "A.PNG", "_-b.png", "-b.png", "é.png", "é.png"])
    assert names == {"a.png", "A-1.PNG", "_-b.png", "_-b-3.png", "é.png", "é-5.png"}
    assert "A.PNG as A-1.PNG" in said and "3: " in said


def test_names_that_are_kept_are_not_mentioned(here, capsys):
    assert renamed(here, capsys, [*KEPT]) == ({"a.png", "ä-1 (b).png", "x.png", "console.png"}, "")


def with_key(mode):
    """An image of this mode, one colour of which is transparent."""
    image = Image.new(mode, (8, 8))
    image.info["transparency"] = (0, 0, 0) if mode == "RGB" else 0
    return image


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_transparent_colour_is_refused(here, mode):
    with_key(mode).save(here / "d.png")
    front = types.SimpleNamespace(size=8, channels=len(Image.new(mode, (1, 1)).getbands()))
    stub = types.SimpleNamespace(front=front)
    with pytest.raises(UserError, match="must not have transparency, got a transparent"):
        FILES["images"].read(here / "d.png", stub)
    with pytest.raises(UserError, match="must not have transparency"):
        list(rows_of(here, types.SimpleNamespace()))


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (Image.new("L", (9, 8)), "must be 8x8 pixels of mode L, got 9x8 of mode L"),
        (Image.new("RGB", (8, 8)), "got 8x8 of mode RGB"),
        (Image.new("LA", (8, 8)), "got 8x8 of mode LA"),
        (Image.new("I;16", (8, 8)), "got 8x8 of mode I;16"),
    ],
)
def test_an_image_that_would_be_changed_is_refused(here, capsys, image, said):
    image.save(here / "d.png")
    line = mistake(capsys, "compress", "m", "d.png", "--condition", "1", "--out", "x.onepass")
    assert said in line and "d.png" in line
    assert not (here / "x.onepass").exists()


def test_a_colour_profile_that_is_not_kept_is_said(here, capsys):
    gamma = struct.pack(">I", 4) + b"gAMA" + struct.pack(">I", 100_000)
    gamma += struct.pack(">I", zlib.crc32(gamma[4:]))
    data = (here / "a.png").read_bytes()
    (here / "d.png").write_bytes(data[:33] + gamma + data[33:])
    words = ["compress", "m", "d.png", "--condition", "1", "--out", "x.onepass"]
    assert main(words) == 0
    assert "d.png: its pixels are kept, its colour profile is not" in capsys.readouterr().err


def test_an_image_of_several_frames_is_refused(here, capsys):
    frames = [Image.new("L", (8, 8), value) for value in (0, 255)]
    frames[0].save(here / "d.tif", save_all=True, append_images=frames[1:])
    line = mistake(capsys, "compress", "m", "d.tif", "--condition", "1", "--out", "x.onepass")
    assert "d.tif must be one image, it holds 2" in line


def test_files_that_are_no_images_are_named(here, capsys):
    (here / "t.png").write_text("text")
    for name in ("t.png", "gone.png"):
        words = ("compress", "m", name, "--condition", "1", "--out", "x.onepass")
        assert name in mistake(capsys, *words)
    assert "class" in mistake(capsys, "compress", "m", "a.png", "--out", "x.onepass")


class _Sounds(Kind):
    """Stands in for a WaveNet and its files: keeps the recordings as they are."""

    name, sample_rate_hz = "sound", 8000
    front = types.SimpleNamespace(sample_rate_hz=8000)
    conditionals = types.SimpleNamespace(
        levels=65536, ways=("closed",), is_cheap=lambda shape: False
    )

    @property
    def compressed(self):
        return self

    def digests(self):
        return bytes(16), None

    def pack(self, elements, condition, tolerance, **options):
        self.kept = elements
        return (len(elements), 1, 1, 1), {"narrowest": tolerance}, ()

    def check(self, found):
        pass

    def blocks(self, found, condition):
        return iter(())

    def unpack(self, found, parts):
        return self.kept


def test_recordings_keep_every_sample(tmp_path, monkeypatch, capsys):
    sounds, draws = _Sounds(), np.random.default_rng(0)
    monkeypatch.setattr(compression_command, "load", lambda path: sounds)
    monkeypatch.chdir(tmp_path)
    samples = draws.integers(-32768, 32768, 50).astype(np.int16)
    soundfile.write("a.wav", samples, 8000, subtype="PCM_16")
    soundfile.write("b.flac", samples[:20], 8000, subtype="PCM_16")
    assert main(["compress", "m", "a.wav", "b.flac", "--out", "x.onepass"]) == 0
    assert main(["decompress", "m", "x.onepass", "--out", "back"]) == 0
    np.testing.assert_array_equal(soundfile.read("back/a.wav", dtype="int16")[0], samples)
    np.testing.assert_array_equal(soundfile.read("back/b.flac", dtype="int16")[0], samples[:20])
    soundfile.write("c.wav", samples, 16000, subtype="PCM_16")
    line = mistake(capsys, "compress", "m", "c.wav", "--out", "y.onepass")
    assert "mono PCM_16 at 8000 Hz, got 1 channels of PCM_16 at 16000 Hz" in line
    pathlib.Path("d.flac").write_bytes(2 * pathlib.Path("b.flac").read_bytes())
    line = mistake(capsys, "compress", "m", "d.flac", "--out", "y.onepass")
    assert "d.flac must be one sound" in line and not pathlib.Path("y.onepass").exists()


def wav_of(samples, kind="WAV"):
    memory = io.BytesIO()
    soundfile.write(memory, samples, 8000, "PCM_16", format=kind)
    return memory.getvalue()


def promising(wav, size):
    return wav[:40] + struct.pack("<I", size) + wav[44:]


def promising_nothing(flac):
    bits = int.from_bytes(flac[18:26], "big")
    return flac[:18] + (bits >> 36 << 36).to_bytes(8, "big") + flac[26:]


NOISE = np.random.default_rng(0).integers(-9000, 9000, 6000).astype(np.int16)
UNFINISHED = {
    "cut": (wav_of(NOISE)[:6044], "must be whole: its header promises 6,000 samples, it has 3,000"),
    "cut by a byte": (wav_of(NOISE)[:-1], "must be whole: its header promises 6,000 samples"),
    "cut RF64": (wav_of(NOISE, "RF64")[:-4], "promises 6,000 samples, it has 5,998"),
    "cut AIFF": (wav_of(NOISE, "AIFF")[:-4], "promises 6,000 samples, it has 5,998"),
    "cut FLAC": (wav_of(NOISE, "FLAC")[:-900], "cannot be read as sound"),
    "streamed": (promising(wav_of(NOISE), 2**32 - 1), "own length in its header: it gives none"),
    "of sox": (promising(wav_of(NOISE), 0x7FFFF000), "own length in its header: it gives none"),
    "streamed FLAC": (promising_nothing(wav_of(NOISE, "FLAC")), "in its header: it gives none"),
    "begun": (promising(wav_of(NOISE), 0), "holds no samples"),
    "longer": (promising(wav_of(NOISE), 4000), "own length in its header: it holds more"),
    "of another format": (wav_of(NOISE, "W64"), "must be a WAV, FLAC or AIFF file, got one of"),
}


@pytest.mark.parametrize("name", UNFINISHED)
def test_a_recording_that_is_not_whole_is_refused(tmp_path, monkeypatch, capsys, name):
    data, said = UNFINISHED[name]
    monkeypatch.setattr(compression_command, "load", lambda path: _Sounds())
    monkeypatch.chdir(tmp_path)
    pathlib.Path("x.wav").write_bytes(data)
    line = mistake(capsys, "compress", "m", "x.wav", "--out", "x.onepass")
    assert said in line and line.startswith("onepass: x.wav")
    assert not pathlib.Path("x.onepass").exists()


def test_a_recording_that_grows_while_it_is_read_is_refused(tmp_path, monkeypatch, capsys):
    find = decoding.find_audio_chunk

    def grown(file):
        chunk = find(file)
        with open("x.wav", "ab") as more:
            more.write(bytes(200))
        return chunk

    monkeypatch.setattr(compression_command, "load", lambda path: _Sounds())
    monkeypatch.setattr(decoding, "find_audio_chunk", grown)
    monkeypatch.chdir(tmp_path)
    pathlib.Path("x.wav").write_bytes(wav_of(NOISE))
    line = mistake(capsys, "compress", "m", "x.wav", "--out", "x.onepass")
    assert line == "onepass: x.wav: has changed while it was read.\n"
    assert not pathlib.Path("x.onepass").exists()


def test_what_is_evaluated_is_read_as_what_is_sampled_from_and_said(tmp_path, capsys):
    loud = NOISE // 3 + 9000
    (tmp_path / "a.wav").write_bytes(wav_of(loud.astype(np.int16))[:-2000])
    (row,) = rows_of(tmp_path, _Sounds())
    np.testing.assert_array_equal(row, audio.read(tmp_path / "a.wav"))
    assert len(row) == 5000 and abs(row.mean()) < 1e-6
    lines = capsys.readouterr().err.splitlines()
    promise = "is cut off: its header promises 0.75 s, it has 0.62 s"
    assert lines[0] == f"{tmp_path / 'a.wav'}: {promise}"
    assert "has a constant offset of -11." in lines[1] and len(lines) == 2


def test_a_constant_offset_is_part_of_what_is_compressed(tmp_path):
    samples = (NOISE // 3 + 9000).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", samples, 8000, subtype="PCM_16")
    np.testing.assert_array_equal(FILES["sound"].read(tmp_path / "a.wav", _Sounds()), samples)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["a.wav", "--condition", "one", "two"],
            "`--condition` must be at most 1 for sound, got 2",
        ),
        ([], "`FILES` is empty"),
    ],
)
def test_what_a_kind_does_not_take_is_refused(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.setattr(compression_command, "load", lambda path: _Sounds())
    assert said in mistake(capsys, "compress", "m", *words, "--out", tmp_path / "x.onepass")


def test_a_model_without_conditionals_is_refused(tmp_path, monkeypatch, capsys):
    silent = types.SimpleNamespace()
    monkeypatch.setattr(compression_command, "load", lambda path: silent)
    line = mistake(capsys, "compress", "shipped", "a.wav", "--out", tmp_path / "x.onepass")
    assert "shipped must have exact conditionals to compress, got SimpleNamespace" in line
