"""The quick tests notice deliberate faults."""

import pytest
from mutations import FAULTS, ROOT, main


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_can_be_put_where_it_belongs(name):
    fault = FAULTS[name]
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.text) == 1
    assert fault.text != fault.replacement
    assert all((ROOT / place).is_file() for place in fault.tests)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_at_least_nine_of_ten_faults_are_noticed():
    assert len(FAULTS) == 10 and main([]) == 0
