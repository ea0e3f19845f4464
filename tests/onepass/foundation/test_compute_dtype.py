"""bfloat16 without instructions is said once, and nothing else is said."""

import pytest
import tensorflow as tf

from onepass.foundation import runtime as module
from onepass.foundation.runtime import compute_dtype, has_instructions

OLD, NEW = "flags\t\t: fpu avx2 fma\n", "flags\t\t: fpu avx2 avx512_bf16\n"


@pytest.fixture
def processor(monkeypatch, tmp_path):
    """Say what the machine's processor is, and forget what was said."""
    module._warn_where_slow.cache_clear()
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [])
    monkeypatch.setattr(module, "CPU_INFO", tmp_path / "cpuinfo")
    yield (tmp_path / "cpuinfo").write_text
    module._warn_where_slow.cache_clear()


def test_a_processor_without_the_instructions_is_said_once(processor, capsys):
    processor(OLD)
    assert compute_dtype("float32") == tf.float32
    assert capsys.readouterr().err == ""
    assert [compute_dtype("bfloat16") for _ in range(2)] == [tf.bfloat16] * 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no instructions for bfloat16" in line and "float32" in line


@pytest.mark.parametrize("text", [NEW, "Features\t: fp asimd bf16\n", ""])
def test_what_has_them_or_does_not_tell_is_silent(processor, capsys, monkeypatch, text):
    processor(text)
    compute_dtype("bfloat16")
    processor(OLD)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [kind])
    compute_dtype("bfloat16")  # an accelerator has them
    assert capsys.readouterr().err == ""


def test_a_system_without_the_file_does_not_tell(processor):
    assert has_instructions() is None
