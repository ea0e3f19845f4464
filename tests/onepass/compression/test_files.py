"""Compressed files of earlier programs give back their elements, and new ones are the same."""

import functools

import compressed_files
import numpy as np
import pytest
from compressed_files import CASES, FILES, recordings

import onepass
from onepass.compression.container import read

pytest.importorskip("constriction")
SLACK = 8  # bytes by which streams may differ where a network's last digits do


@functools.cache
def model(name):
    return CASES[name].model()


@functools.cache
def elements(name):
    return compressed_files.stored()[name]


def decoded(name, data):
    case, made = CASES[name], model(name)
    if made.kind != "autoregressive":
        found = made.decompress(data)
        return np.concatenate(found) if case.draw is compressed_files.samples else found
    return onepass.decompress(made, data, case.options.get("condition"))


@pytest.mark.parametrize(("name", "version"), FILES)
def test_a_file_of_an_earlier_program_gives_its_elements(name, version):
    data = compressed_files.path_of(name, version).read_bytes()
    assert read(data).version == version
    found = decoded(name, data)
    assert found.dtype == elements(name).dtype
    np.testing.assert_array_equal(found, elements(name))


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_written_as_it_was(name):
    case = CASES[name]
    before = read(compressed_files.path_of(name, max(case.versions)).read_bytes())
    now = read(compressed_files.compressed(case, model(name), elements(name), verify=False))
    for field in ("kind", "digest", "levels", "checksum", "shape", "description", "version"):
        assert getattr(now, field) == getattr(before, field)
    for one, other in zip(now.streams, before.streams, strict=True):
        assert abs(len(one) - len(other)) <= SLACK


def test_files_are_few_and_small():
    sizes = [path.stat().st_size for path in compressed_files.FOLDER.iterdir()]
    assert sum(sizes) < 100_000 and len(recordings(elements("sound"))) == 3
