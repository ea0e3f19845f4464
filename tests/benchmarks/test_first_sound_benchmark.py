"""`benchmarks.first_sound` adds up every part of the first sound, and counts later calls apart."""

from benchmarks import first_sound
from benchmarks.first_sound import eight_layers
from onepass.likelihoods import LogisticMixture


def test_the_parts_of_the_first_sound_are_its_sum(monkeypatch):
    def made(name):
        return eight_layers(units=4, layers=2), LogisticMixture(levels=256, components=4)

    monkeypatch.setattr(first_sound, "made", made)
    found = first_sound.measure("eight", "auto")
    later = {"second length", "more rows", "a fourth row", "stream"}
    parts = found.keys() - later - {"first sound"}
    assert parts == {"construction", "derivation", "verification", "lowering", "first sample"}
    assert abs(found["first sound"] - sum(found[part] for part in parts)) < 1e-9
    assert min(found.values()) >= 0.0
