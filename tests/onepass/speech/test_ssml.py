"""Pauses and emphasis that people write: the subset of SSML that the text front end obeys."""

import dataclasses
import itertools
import warnings

import numpy as np
import pytest
from marks import needs_espeak

from onepass import speech
from onepass.speech.markup import Ssml, is_ssml, note_on_markup
from onepass.speech.phonemes import COMMA, QUESTION, START, STOP

LAUGHS = "".join(
    f'<!ENTITY a{n} "{f"&a{n - 1};" * 10 if n else "ha"}">' for n in range(9)
)  # a billion of them


def marked(document):
    """The words of a document, and what its marks say, in their order."""
    marks = {}
    text = Ssml(document, marks).text
    said = [(marks[c].seconds, marks[c].stretch, marks[c].octaves) for c in text if c in marks]
    return "".join(c for c in text if c not in marks).split(), said


def read(student, document, speed=1.0):
    marks = {}
    text = Ssml(document, marks).text
    return speech.shipped_voice(student.spec).reading(text, speed, marks)


def pauses(found):
    return [p.symbol for p in found.phonemes if p.is_pause]


def test_tags_become_marks_and_words_stay():
    words, said = marked(
        '<speak>Wait<break time="500ms"/>here &amp; <emphasis>now</emphasis></speak>'
    )
    assert words == ["Wait", "here", "&", "now"]
    assert said == [(0.5, None, 0.0), (None, 1.15, 0.12), (None, 1.0, 0.0)]


@pytest.mark.parametrize(
    ("tag", "seconds"),
    [
        ("<break/>", 0.5),
        ('<break time="1.5s"/>', 1.5),
        ('<break time="+.25s"/>', 0.25),
        ('<break time="0ms"/>', 0.0),
        ('<break time="10s" strength="weak"/>', 10.0),
        ('<break strength="x-strong"/>', 1.0),
        ('<break strength="none"/>', 0.0),
    ],
)
def test_a_break_lasts_as_it_says(tag, seconds):
    assert marked(f"<speak>a{tag}b</speak>")[1] == [(seconds, None, 0.0)]


def test_styles_within_styles_multiply_within_bounds():
    inner = '<prosody rate="50%"><emphasis level="strong">b</emphasis></prosody>'
    stretches = [stretch for _, stretch, _ in marked(f"<speak>a {inner} c</speak>")[1]]
    assert stretches == [2.0, 2.6, 2.0, 1.0]
    deep = '<prosody rate="25%">' * 30 + "a" + "</prosody>" * 30
    assert max(stretch for _, stretch, _ in marked(f"<speak>{deep}</speak>")[1]) == 4.0
    high = '<emphasis level="strong">' * 30 + "a" + "</emphasis>" * 30
    assert max(octaves for *_, octaves in marked(f"<speak>{high}</speak>")[1]) == 0.5


def test_only_a_text_in_speak_is_ssml():
    for text in ("<speak>a</speak>", ' \n<?xml version="1.0"?>\n<speak version="1.1">a</speak>'):
        assert is_ssml(text)
    for text in ("<speaker>a", "say <speak>a</speak>", "<p>a</p>", "2 < 3", "", "<speak"):
        assert not is_ssml(text)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("<speak>a", "well-formed XML, got no element found at line 1, column 9"),
        ("<speak>a</speak> b", "well-formed XML"),
        ("<speak><b>a</speak>", "got mismatched tag at line 1, column 14"),
        ("<speak>a &nbsp; b</speak>", "undefined entity"),
        ("<speak>\ud800</speak>", "half a character"),
        ("<speak>a\x00</speak>", "well-formed XML"),
        ('<speak><break time="500"/>a</speak>', "`time` of <break> must be such as 500ms or 1.5s"),
        ('<speak><break time="-1s"/>a</speak>', "at most 10s, got '-1s'."),
        ('<speak><break time="11s"/>a</speak>', "at most 10s, got '11s'."),
        ('<speak><break time="1e9s"/>a</speak>', "at most 10s, got '1e9s'."),
        ('<speak><break time="&#10;"/>a</speak>', "at most 10s, got '\\n'."),
        ('<speak><break strength="big"/>a</speak>', "must be one of none, x-weak, weak, medium"),
        ('<speak><emphasis level="a">b</emphasis></speak>', "`level` of <emphasis> must be one of"),
        ('<speak><prosody rate="0%">b</prosody></speak>', "or from 25% to 400%, got '0%'."),
        ('<speak><prosody rate="nan">b</prosody></speak>', "or from 25% to 400%, got 'nan'."),
    ],
)
def test_a_mistake_is_refused_in_one_line(student, document, words):
    for refusing in (note_on_markup, lambda text: speech.text_frames(student, text)):
        with pytest.raises(speech.TextError) as refusal:
            refusing(document)
        assert words in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "kind",
    [
        f"<!DOCTYPE speak [{LAUGHS}]>",
        '<!DOCTYPE speak [<!ENTITY a8 SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE speak SYSTEM "http://127.0.0.1:1/a.dtd">',
    ],
)
def test_no_entity_is_ever_expanded(kind):
    document = f"{kind}<speak>&a8;</speak>"
    for each in (document, f'<?xml version="1.0"?>{document}'):
        with pytest.raises(speech.TextError, match="no document type"):
            Ssml(each, {})
        assert is_ssml(each)  # which is refused rather than read aloud


def test_tags_that_are_not_obeyed_are_named_once_and_what_they_enclose_is_kept():
    document = (
        '<speak version="1.1" xmlns="http://www.w3.org/2001/10/synthesis"><p>One <w>two</w></p>'
        '<w>three</w><prosody rate="slow" pitch="high">four</prosody><x:y xmlns:x="z"/></speak>'
    )
    assert marked(document)[0] == ["One", "two", "three", "four"]
    note = "not obeyed and left out: <p>, <w>, `pitch` of <prosody>, <x:y>"
    assert note_on_markup(document) == note
    assert note_on_markup("<speak>a<break/></speak>") is None


def test_tags_outside_of_ssml_are_said_to_be_read_aloud():
    for tag in ("<b>", '<break time="3s"/>'):
        said = f"{tag} and other tags are read aloud"
        assert note_on_markup(f"Wait {tag} there.").startswith(said)
    assert note_on_markup("2 < 3 and 4 > 1, <3") is None


@needs_espeak
def test_python_warns_of_tags_that_are_left_out(student):
    with pytest.warns(UserWarning, match="left out: <audio>"):
        frames = speech.text_frames(student, '<speak>Yes<audio src="a"/>.</speak>')
    np.testing.assert_array_equal(frames, speech.text_frames(student, "Yes."))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        speech.text_frames(student, "<speak>Yes<audio/>.</speak>", note=None)


@needs_espeak
@pytest.mark.parametrize("speed", [0.5, 1.0, 3.0])
def test_a_pause_has_the_written_length_at_any_speed(student, speed):
    hop = speech.shipped_voice(student.spec).hop_seconds
    for document, symbols, place in (
        ('<speak>One <break time="700ms"/> two.</speak>', [START, COMMA, STOP], 1),
        ('<speak>One. <break time="700ms"/>Two.</speak>', [START, STOP, STOP], 1),
        (
            '<speak>One? <break time="300ms"/><break time="400ms"/>Two</speak>',
            [START, QUESTION, STOP],
            1,
        ),
        ('<speak><break time="700ms"/>One.</speak>', [START, STOP], 0),
        ('<speak>One<break time="700ms"/></speak>', [START, STOP], 1),
    ):
        found = read(student, document, speed)
        assert pauses(found) == symbols
        lengths = [n for n, p in zip(found.lengths, found.phonemes, strict=True) if p.is_pause]
        assert abs(lengths[place] * hop - 0.7) <= 1.01 * hop


@needs_espeak
def test_what_is_emphasised_is_longer_and_higher_and_the_rest_is_not(student):
    own = speech.shipped_voice(student.spec)
    plain = read(student, "<speak>A big house.</speak>")
    strong = read(student, '<speak>A <emphasis level="strong">big</emphasis> house.</speak>')
    assert [p.symbol for p in plain.phonemes] == [p.symbol for p in strong.phonemes]
    assert [p.stretch for p in strong.phonemes] == [1, 1, 1.3, 1.3, 1.3, 1, 1, 1, 1]
    ratio = strong.lengths[2:5].sum() / plain.lengths[2:5].sum()
    assert ratio == pytest.approx(1.3, abs=0.06)
    np.testing.assert_allclose(strong.lengths[5:], plain.lengths[5:], atol=1)
    raised = [p.octaves for p in strong.phonemes]
    assert raised == [0, 0, 0.25, 0.25, 0.25, 0, 0, 0, 0]
    level = [dataclasses.replace(p, octaves=0.0) for p in strong.phonemes]
    flat = own.speak_frames(dataclasses.replace(strong, phonemes=level))
    assert np.abs(flat - own.speak_frames(strong)).max() > 0.01


@needs_espeak
def test_a_slow_part_is_as_slow_as_it_says_also_across_parts_of_a_long_text(student):
    sentence = "The boat rounds the point, and the wind goes quiet. "
    own = speech.shipped_voice(student.spec)

    def spoken(text):
        readings = list(speech._readings(own, text, None, {}, 1.0))
        pairs = [zip(each.lengths, each.phonemes, strict=True) for each in readings]
        return readings, sum(n for each in pairs for n, p in each if not p.is_pause)

    once = spoken(sentence)[1]
    for percent, factor in ((50, 2), (25, 4)):
        slow = f'<speak><prosody rate="{percent}%">{sentence * 30}</prosody>{sentence}</speak>'
        readings, frames = spoken(slow)
        assert len(readings) > 1
        assert frames == pytest.approx((30 * factor + 1) * once, rel=0.03)
    stretches = [p.stretch for each in readings for p in each.phonemes if not p.is_pause]
    assert [key for key, _ in itertools.groupby(stretches)] == [4.0, 1.0]
