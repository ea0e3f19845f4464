"""Every rule of the table computes what PyTorch's operation computes, in the same dtype."""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tensorflow as tf  # noqa: E402
import torch_cases  # noqa: E402
import torch_product_cases  # noqa: E402
from drawn_arguments import CASES, Draw  # noqa: E402
from hypothesis import Phase, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from processes import ROOT  # noqa: E402

from onepass.networks.from_torch.network import RULE_MODULES  # noqa: E402
from onepass.networks.from_torch.table import RULES, SIZES, rule_for  # noqa: E402

# Rules for what is no operation of ATen; tests of whole networks run them.
ELSEWHERE = {
    *("onepass.recurrent", "cond", "scan", "wrap_with_set_grad_enabled", "wrap_with_autocast"),
    *("transformers.grouped_mm_fallback", "empty", "empty_like", "new_empty"),
}
# Rules that only say why an operation is refused.
REFUSED = {"lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"}


def as_tensorflow(argument):
    if isinstance(argument, torch.Tensor):
        return tf.constant(argument.numpy())
    if isinstance(argument, list | tuple):
        return [as_tensorflow(each) for each in argument]
    return tf.as_dtype(str(argument)[6:]) if isinstance(argument, torch.dtype) else argument


def listed(result):
    return list(result) if isinstance(result, list | tuple) else [result]


def operation(name):
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.aten, packet)
    return getattr(found, overload or "default") if overload or hasattr(found, "default") else found


def check(name, arguments, options):
    with torch.no_grad():
        wanted = listed(operation(name)(*arguments, **options))
    tensors = {key: as_tensorflow(each) for key, each in options.items()}
    found = listed(rule_for(name)(*as_tensorflow(list(arguments)), **tensors))
    for one, other in zip(wanted, found, strict=False):
        if isinstance(one, int):
            assert one == other
            continue
        one, other = one.resolve_conj(), tf.convert_to_tensor(other)
        assert other.dtype.name == str(one.dtype)[6:], name
        assert list(other.shape) == list(one.shape), name
        tolerance = 1e-9 if one.dtype in (torch.float64, torch.complex128) else 2e-5
        np.testing.assert_allclose(other.numpy(), one.numpy(), tolerance, tolerance, err_msg=name)


@pytest.mark.filterwarnings("ignore:.*Triggered internally:UserWarning")  # of torch's own forms
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_rule_computes_what_torch_computes(name):
    function, examples = CASES[name]

    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
    )
    @given(st.data())
    def agrees(data):
        drawn = function(Draw(data))
        arguments, options = drawn if isinstance(drawn, tuple) else (drawn, {})
        check(name, arguments, options)

    agrees()


def test_every_rule_has_a_case():
    assert torch_cases and torch_product_cases and RULE_MODULES
    names = {name for name in RULES if not name.startswith("py.")} - ELSEWHERE - REFUSED
    covered = {name.removesuffix(".default") for name in CASES}
    covered |= {name.partition(".")[0] for name in covered}
    assert names - covered == set()


def test_the_page_lists_the_operations_of_the_table():
    page = ROOT / "docs" / "reference" / "torch.md"
    text = page.read_text(encoding="utf-8").split("{ #operations }")[1]
    assert set(re.findall(r"`([\w.]+)`", text)) == {n for n in RULES if not n.startswith(SIZES)}
