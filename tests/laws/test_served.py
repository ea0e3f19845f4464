"""A served model obeys the laws as a local one does."""

import own_models
import pytest

from onepass.testing import Subject, check_law

# Laws about draws and scores; what is not listed needs the network.
LAWS = (
    *("a_seed_decides", "chunks_are_the_whole", "a_row_depends_on_no_other_row"),
    *("a_shorter_draw_is_a_beginning", "a_prefix_is_continued", "a_stop_ends_rows"),
    *("temperature_zero_leaves_no_chance", "only_allowed_tokens_are_drawn"),
    *("scores_are_those_of_draws", "scores_are_causal", "scores_of_a_row_depend_on_no_other_row"),
)


@pytest.mark.integration
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_served_model_obeys_the_laws(protocol):
    with own_models.served(protocol, "tokens", "student") as (_, (tokens, student)):
        subject = Subject(tokens, own_models.LONGEST)
        assert [check_law(law, subject) for law in LAWS] == [""] * len(LAWS)
        subject = Subject(student, own_models.LONGEST, atol=1e-4)
        assert [check_law(law, subject) for law in LAWS[:4]] == [""] * 4
