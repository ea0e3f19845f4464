"""The page in a browser without a screen, against the application with bundles of no cost."""

import base64
import contextlib
import io
import itertools
import re
import socket
import threading
import time
import wave
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_bundle import SIDES, FakeDrawings, FakeImages, FakeModelStore, FakeSound
from http_running import Running
from path_proxy import in_folder
from PIL import Image

BROWSER = "/usr/bin/chromium"

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
CHUNK = 1600
PHONE = {"width": 360, "height": 740}
TOKEN = "a token of more than sixteen"

# Notes every piece of sound that is scheduled, and every scale that an image shows.
SPY = """
window.scheduled = []; window.sides = {};
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (when) {
  const samples = this.buffer.getChannelData(0);
  window.scheduled.push([when, when + this.buffer.duration, Math.max(...samples)]);
  return start.call(this, when);
};
document.addEventListener("load", ({ target }) => {
  const name = target.closest?.("figure") && target.alt.match(/image [0-9]+/)[0];
  if (name) (window.sides[name] ??= []).push(target.naturalWidth);
}, true);
"""

# The lowest contrast of a text to what is behind it (WCAG 2.2, success criterion 1.4.3).
CONTRAST = """() => {
  const numbers = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = (colour) => numbers(colour).slice(0, 3)
      .map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
      .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if ((numbers(colour)[3] ?? 1) > 0) return colour;
    }
  };
  const hasWords = (node) => [...node.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  const words = [...document.querySelectorAll("body *")]
      .filter((node) => node.checkVisibility() && hasWords(node) && !node.matches(":disabled"));
  return Math.min(...words.map((node) => {
    const pair = [light(getComputedStyle(node).color), light(behind(node))].sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  }));
}"""


class Gate:
    """Stands in for an event: lets so many pass, the others when it is set."""

    def __init__(self, passing):
        self._left, self._event = passing, threading.Event()

    def wait(self, seconds):
        self._left -= 1
        return self._left >= 0 or self._event.wait(seconds)

    def set(self):
        self._event.set()


class Speech(FakeSound):
    """Syllables of a gliding tone, in chunks of a tenth of a second."""

    def stream(self, **options):
        return super().stream(**{**options, "chunk": CHUNK})

    def _sound(self, frames, seed, row, temperature):
        seconds = np.arange(4 * len(frames)) / 16_000
        syllables = np.sin(2 * np.pi * 2 * seconds) ** 2
        tones = sum(
            np.sin(2 * np.pi * n * (140 * seconds + 10 * np.sin(3 * seconds))) / n
            for n in range(1, 20)
        )
        return (0.2 * syllables * tones).astype(np.float32)


class Visitor:
    """A page of the server, and everything that it should not have done."""

    def __init__(self, page, running):
        self.page, self.url = page, running.url
        self.complaints, self.foreign, self.expected = [], [], None
        page.on("console", self._listen)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._watch)
        page.add_init_script(SPY)
        page.set_default_timeout(8000)

    def _listen(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _watch(self, request):
        if not request.url.startswith((self.url, "data:", f"blob:{self.url}")):
            self.foreign.append(request.url)

    def check(self):
        known = self.expected and re.compile(self.expected)
        complaints = [text for text in self.complaints if not (known and known.search(text))]
        assert complaints == [], complaints
        assert self.foreign == [], self.foreign

    def open(self, model="voice"):
        self.page.goto(self.url)
        self.page.get_by_role("radio", name=model, exact=False).first.check()
        return self

    def click(self, name):
        self.page.get_by_role("button", name=name, exact=True).click()

    def download(self, name):
        with self.page.expect_download() as found:
            self.page.get_by_role("link", name=name).click()
        return found.value.suggested_filename, found.value.path().read_bytes()

    def hears(self, words):
        """Waits for the words in the region that is read aloud."""
        self.page.get_by_role("status").filter(has_text=re.compile(words)).wait_for()

    def until(self, expression, seconds=8):
        """Waits for an expression to hold; Playwright's own wait needs what the policy forbids."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, expression
            self.page.wait_for_timeout(30)

    def alert(self):
        self.until("document.getElementById('error').textContent")
        return self.page.get_by_role("alert").inner_text()

    def readings(self):
        texts = self.page.locator("#readings dd").all_inner_texts()
        return [" ".join(text.split()) for text in texts]

    def until_scheduled(self, seconds):
        total = "window.scheduled.reduce((sum, [start, end]) => sum + end - start, 0)"
        self.until(f"{total} > {seconds - 0.01}")

    def colours(self, canvas):
        """Return the colours above the axis in the left and the right half of a canvas."""
        return self.page.evaluate(
            """(name) => {
                const canvas = document.getElementById(name);
                const { width, height } = canvas;
                const copy = new OffscreenCanvas(width, height);
                const context = copy.getContext("2d", { willReadFrequently: true });
                context.drawImage(canvas, 0, 0);
                return [0, width >> 1].map((x) => new Set(new Uint32Array(
                    context.getImageData(x, 0, width >> 1, height - 40).data.buffer)).size);
            }""",
            canvas,
        )

    def focused(self):
        """The id or the label of what has the focus; fails where that cannot be seen."""
        name, is_visible = self.page.evaluate(
            """() => {
                const { activeElement: node } = document;
                const shown = [node, node.nextElementSibling].filter(Boolean);
                return [node.id || node.labels[0].innerText.split("\\n")[0],
                        shown.some((n) => getComputedStyle(n).outline.includes("solid 3px"))];
            }"""
        )
        assert is_visible, name
        return name

    def tab(self, until):
        """Presses Tab until that has the focus; what had it on the way."""
        names = []
        while until not in names:
            assert len(names) < 20, names
            self.page.keyboard.press("Tab")
            names.append(self.focused())
        return names


playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not Path(BROWSER).exists(), reason=f"there is no {BROWSER}"),
]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    store = FakeModelStore(tmp_path_factory.mktemp("models"))
    store.add("voice", kind=Speech)
    store.add("shapes", kind=FakeImages)
    store.add("wide_shapes_whose_name_is_longer_than_a_telephone_is_wide", kind=FakeImages)
    with Running(store) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def serve():
    """Start servers, which stop after the pages that ask them are closed."""
    with contextlib.ExitStack() as stack:
        yield lambda *values, **settings: stack.enter_context(Running(*values, **settings))


@pytest.fixture
def guarded(serve, tmp_path):
    """Start a server of the voice that asks for the token."""

    def guarded(**settings):
        store, file = FakeModelStore(tmp_path / "models"), tmp_path / "token"
        store.add("voice", kind=Speech)
        file.write_text(TOKEN, encoding="utf-8")
        return serve(store, token_file=file, **settings)

    return guarded


@pytest.fixture
def visit(browser, running, serve):
    """Makes visitors; at the end nothing was complained of and nothing left the machine."""
    visitors = []
    with contextlib.ExitStack() as stack:

        def visit(at=running, **options):
            context = stack.enter_context(browser.new_context(**options))
            visitors.append(Visitor(context.new_page(), at))
            return visitors[-1]

        yield visit
    for visitor in visitors:
        visitor.check()


@pytest.fixture
def voice(running):
    """The control of the voice, which is let go afterwards."""
    control = running.store.controls["voice", 1]
    yield control
    control.open.set()
    control.open = threading.Event()
    control.open.set()


def held_after(control, chunks):
    control.open = Gate(chunks)
    return control.open


def samples_of(wav):
    with wave.open(io.BytesIO(wav)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def test_speech_sounds_and_is_drawn_before_the_whole_is_there(visit, voice, running):
    visitor, gate = visit().open(), held_after(voice, 6)
    visitor.click("Speak")
    visitor.until_scheduled(0.5)
    assert max(loudest for *_, loudest in visitor.page.evaluate("window.scheduled")) > 0.1
    visitor.until("!document.getElementById('playhead').hidden")
    for canvas, most in {"wave": 3, "spectrum": 1}.items():
        left, right = visitor.colours(canvas)
        assert left > right and right <= most
    first, factor, made = visitor.readings()
    assert re.fullmatch("[0-9]+ ms", first) and re.fullmatch("[0-9.]+ [0-9.]+ . real time", factor)
    assert made.endswith("of 2.42 s")
    gate.set()
    visitor.hears("^Made 2.42 s of sound")
    assert visitor.readings()[2] == "2.42 s"
    assert all(visitor.colours("spectrum")[n] > 30 for n in (0, 1))
    scheduled = itertools.pairwise(visitor.page.evaluate("window.scheduled"))
    # None begins before the one before has ended; a busy machine makes pauses.
    assert all(following[0] >= piece[1] - 1e-6 for piece, following in scheduled)
    name, wav = visitor.download("Download WAV")
    example = visitor.page.locator("#example").input_value()
    body = {"example": example, "speaker": "anna"}
    answer = running.client.post("/v1/models/voice:speak", json=body)
    assert name == "voice-0.wav"
    np.testing.assert_array_equal(samples_of(wav), np.frombuffer(answer.content[44:], "<i2"))


def test_stop_ends_the_work_and_keeps_what_is_there(visit, voice):
    visitor, closed = visit().open(), voice.closed
    gate = held_after(voice, 6)
    visitor.click("Speak")
    visitor.until_scheduled(0.5)
    visitor.click("Stop")
    visitor.hears("Stopped")
    assert visitor.page.evaluate("document.activeElement.id") == "go"
    gate.set()
    visitor.page.wait_for_timeout(100)
    assert voice.closed == closed + 1
    _, wav = visitor.download("Download WAV")
    assert 5 * CHUNK <= len(samples_of(wav)) <= 8 * CHUNK
    visitor.click("Play")
    visitor.page.get_by_role("button", name="Pause").wait_for()


def test_images_grow_scale_by_scale(visit, running):
    visitor = visit().open("shapes")
    visitor.page.get_by_label("Class", exact=True).select_option("class 3")
    visitor.page.get_by_label("Seed", exact=True).fill("5")
    visitor.page.get_by_label("Guidance").fill("2")
    visitor.click("Draw")
    visitor.hears("^Drew 4 images in")
    sides = visitor.page.evaluate("window.sides")
    assert [shown[:2] for shown in sides.values()] == 4 * [list(SIDES)]
    image = visitor.page.get_by_role("img", name="shapes class 3 seed 5, image 2, 16 by 16")
    assert image.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    assert image.bounding_box()["width"] > 4 * SIDES[-1]
    assert visitor.readings()[2].startswith("4 of 4 in ")
    name, png = visitor.download("Download PNG of image 2")
    assert name == "shapes-class-3-seed-5-image-2.png"
    request = {"class": "class 3", "seed": 5, "num": 2, "guidance": 2}
    lines = running.client.post("/v1/models/shapes:draw", json=request).text.splitlines()
    assert base64.b64encode(png).decode() in lines[-1] and Image.open(io.BytesIO(png)).size[0] == 16
    visitor.page.get_by_label("Scale").press("ArrowLeft")
    visitor.page.get_by_role("img", name="image 2, 8 by 8").wait_for()


def test_a_caption_is_there_to_begin_with_and_others_to_choose(visit, tmp_path):
    store = FakeModelStore(tmp_path)
    store.add("drawings", kind=FakeDrawings)
    with Running(store) as running:
        visitor = visit(running).open("drawings")
        field = visitor.page.get_by_label("Caption", exact=True)
        assert field.input_value() == "a dog, noto"
        choices = "[...document.getElementById('caption').list.options].map(each => each.value)"
        assert visitor.page.evaluate(choices) == ["a dog, noto", "a red heart"]
        field.fill("a cat")
        visitor.click("Draw")
        visitor.hears("^Drew 4 images in")
        _, png = visitor.download("Download PNG of image 1")
        request = {"caption": "a cat", "seed": 0, "num": 1}
        lines = running.client.post("/v1/models/drawings:draw", json=request).text.splitlines()
        assert base64.b64encode(png).decode() in lines[-1]


def test_everything_works_from_the_keyboard(visit, voice):
    visitor = visit()
    visitor.page.goto(visitor.url)
    visitor.page.get_by_text("voice", exact=True).first.wait_for()
    keys = visitor.page.keyboard
    way = visitor.tab("go")
    assert way[:4] == ["voice", "Example", "example", "speaker"]
    assert way[4:] == ["seed", "new-seed", "temperature", "go"]
    gate = held_after(voice, 4)
    keys.press("Enter")
    visitor.until_scheduled(0.3)
    keys.press("Escape")
    visitor.hears("Stopped")
    gate.set()
    assert visitor.tab("wav") == ["play", "position", "wav"]
    keys.press("Shift+Tab")
    keys.press("Shift+Tab")
    keys.press("Space")
    visitor.page.get_by_role("button", name="Pause").wait_for()
    for _ in way:
        keys.press("Shift+Tab")
    assert visitor.focused() == "voice"
    keys.press("ArrowUp")
    way = visitor.tab("go")
    assert way == ["class", "seed", "new-seed", "temperature", "guidance", "num", "go"]
    keys.press("Space")
    visitor.hears("^Drew 4 images")


def test_who_asks_before_the_examples_are_there_hears_the_first_of_them(visit, voice):
    visitor, late = visit(), []
    visitor.page.route("**/examples", lambda route: late.append(route))
    visitor.page.goto(visitor.url)
    visitor.until('document.querySelector("#go").textContent === "Speak"')
    visitor.click("Speak")
    visitor.hears("Speaking")
    for route in late:
        route.continue_()
    visitor.hears("^Made")


def test_fits_a_telephone(visit):
    visitor = visit(viewport=PHONE, is_mobile=True, has_touch=True)
    for model, button in {"voice": "Speak", "wide": "Draw"}.items():
        visitor.open(model)
        visitor.click(button)
        visitor.hears("^(Made|Drew)")
        assert visitor.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        assert visitor.page.locator("#readings").is_visible()
        for select in visitor.page.locator("select").all():  # whose words end before the arrow
            assert select.evaluate("(n) => parseFloat(getComputedStyle(n).paddingRight)") >= 24
        heights = visitor.page.evaluate(
            "[...document.querySelectorAll('button, select, .button')]"
            ".map((n) => n.offsetHeight).filter(Boolean)"
        )
        assert min(heights) >= 36
        visitor.until(
            "document.getElementById('readings').getBoundingClientRect().top < innerHeight"
        )


def test_text_can_be_read_in_light_and_dark(visit):
    visitor = visit().open("shapes")
    visitor.click("Draw")
    visitor.hears("^Drew")
    for scheme in ("light", "dark"):
        visitor.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert visitor.page.evaluate(CONTRAST) >= 4.5
        paper = visitor.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.findall("[0-9]+", paper)[0]) > 128) == (scheme == "light")


def test_what_the_server_says_is_shown_and_no_pause_is_left_behind(visit, voice):
    visitor = visit().open()
    visitor.expected = "status of [45]00"
    visitor.page.get_by_role("radio", name="Recording").check()
    visitor.click("Speak")
    assert visitor.alert() == "Choose a recording first."
    broken = {"name": "broken.wav", "mimeType": "audio/wav", "buffer": b"RIFF and nothing more"}
    visitor.page.locator("#recording").set_input_files(broken)
    visitor.click("Speak")
    visitor.page.get_by_role("alert").filter(has_text="`recording` must be").wait_for()
    assert visitor.page.evaluate(CONTRAST) >= 4.5
    visitor.page.get_by_role("radio", name="Example").check()
    visitor.click("Speak")
    visitor.hears("^Made")
    assert visitor.page.get_by_role("alert").inner_text() == ""
    voice.fails_on = 0
    visitor.click("Speak")
    visitor.page.get_by_role("alert").filter(has_text="see the server's log").wait_for()
    voice.fails_on = None
    assert visitor.page.locator("#play").inner_text() == "Play"
    assert visitor.page.get_by_role("button", name="Pause").count() == 0


def test_recordings_and_texts_are_sent(visit, running, monkeypatch):
    words = []

    def frames_of(bundle, text, **_):
        words.append(text)
        return np.zeros([800, 3], np.float32)

    visitor = visit().open()
    visitor.page.get_by_role("radio", name="Example").wait_for()
    assert not visitor.page.get_by_role("radio", name="Text").is_visible()
    monkeypatch.setattr("serving.engine.descriptions.supports_text", lambda served: True)
    monkeypatch.setattr("serving.engine.speech.text_frames", frames_of)
    visitor.open()
    visitor.page.get_by_role("radio", name="Text").check()
    visitor.page.get_by_label("English text").fill("Hello, house.")
    visitor.click("Speak")
    visitor.hears("^Made 200 ms of sound")
    assert words == ["Hello, house."]
    memory = io.BytesIO()
    with wave.open(memory, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", None))
        file.writeframes(np.zeros(8_000, "<i2").tobytes())
    given = {"name": "half.wav", "mimeType": "audio/wav", "buffer": memory.getvalue()}
    visitor.page.get_by_role("radio", name="Recording").check()
    visitor.page.locator("#recording").set_input_files(given)
    visitor.click("Speak")
    visitor.hears("^Made 500 ms of sound")


def test_token_is_asked_for_and_kept_until_the_tab_closes(guarded, visit):
    bearer, server = {"authorization": f"Bearer {TOKEN}"}, guarded()
    visitor = visit(server)
    visitor.expected = "status of 401"
    page = visitor.page

    def opened(route):  # as a browser that was given the password
        route.continue_(headers={**route.request.headers, **bearer})

    page.route(re.compile(r":[0-9]+/(page/.*)?$"), opened)
    page.goto(server.url)
    assert "token" in visitor.alert()
    assert visitor.focused() == "token"
    page.keyboard.type("a guess of some length")
    page.keyboard.press("Enter")
    page.get_by_role("alert").filter(has_text="The token is wrong").wait_for()
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.get_by_role("radio", name="voice").wait_for()
    assert not page.get_by_label("Token").is_visible()
    page.reload()
    page.get_by_role("radio", name="voice").wait_for()
    visitor.click("Speak")
    visitor.hears("^Made")
    assert page.evaluate("localStorage.length + document.cookie.length") == 0


def test_model_that_is_loading_can_be_chosen_once_it_is_ready(serve, visit, tmp_path):
    store = FakeModelStore(tmp_path)
    store.add("shapes", kind=FakeImages)
    running = serve(store, poll_seconds=0.05)
    control = store.add("voice", kind=Speech)
    control.warm_open.clear()
    visitor = visit(running)
    visitor.page.goto(running.url)
    refresh = "dispatchEvent(new Event('focus')), document.body.innerText.includes('loading')"
    visitor.until(refresh)
    assert visitor.page.get_by_role("radio", name="voice").is_disabled()
    control.warm_open.set()
    visitor.until(refresh.replace("document", "!document"))
    visitor.page.get_by_role("radio", name="voice").check()
    visitor.click("Speak")
    visitor.hears("^Made")


def test_policy_keeps_foreign_and_inline_code_out(visit):
    visitor = visit().open()
    visitor.expected = "Content Security Policy"
    foreign = socket.create_server(("127.0.0.1", 0))
    foreign.setblocking(False)
    visitor.page.evaluate(
        """(url) => {
            const made = (tag, rest) => document.body.append(
                Object.assign(document.createElement(tag), rest));
            made("script", { textContent: "window.isIn = true" });
            made("div", { innerHTML: "<p id=styled style='color: red'>" });
            made("img", { src: url });
            return fetch(url).catch(() => {});
        }""",
        f"http://127.0.0.1:{foreign.getsockname()[1]}/",
    )
    with foreign, pytest.raises(BlockingIOError):
        foreign.accept()
    visitor.foreign.clear()
    assert visitor.page.evaluate("window.isIn") is None
    assert visitor.page.locator("#styled").evaluate("n => n.style.color") == ""
    assert len(visitor.complaints) >= 4


def test_page_in_a_folder_of_a_proxy_asks_for_nothing_outside_it(visit, running):
    with in_folder(running.port) as (folder, strays):
        visitor = visit(SimpleNamespace(url=f"{folder}/")).open()
        visitor.click("Speak")
        visitor.hears("^Made 2.42 s of sound")
        visitor.page.get_by_role("radio", name="shapes").first.check()
        visitor.click("Draw")
        visitor.hears("^Drew 4 images in")
        visitor.page.close()
    assert strays == []


ASKS_OTHERS = """async ([url, token]) => {
  const body = JSON.stringify({ example: "arctic_a0099", seconds: 0.5, speaker: "anna" });
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
  try {
    const response = await fetch(url, { method: "POST", headers, body });
    return [response.status, response.headers.get("X-Num-Samples"), await response.text()];
  } catch (error) {
    return [0, null, error.name];
  }
}"""


def test_a_page_of_an_allowed_origin_reads_speech_and_a_page_of_another_does_not(
    browser, running, guarded
):
    # The pages of the other server are those of another site.
    origins = [f"http://{host}:{running.port}" for host in ("127.0.0.1", "localhost")]
    server = guarded(allow_origin=(origins[0],))
    answers = []
    with contextlib.closing(browser.new_context(bypass_csp=True)) as context:
        for origin in origins:
            page = context.new_page()
            page.goto(f"{origin}/healthz")
            url = f"{server.url}/v1/models/voice:speak"
            answers.append(page.evaluate(ASKS_OTHERS, [url, TOKEN]))
            answers.append(page.evaluate(ASKS_OTHERS, [url, "another token"]))
    read, wrong, *others = answers
    assert read[:2] == [200, "8000"] and read[2].startswith("RIFF")
    assert wrong[0] == 401 and "token is wrong" in wrong[2]
    assert others == [[0, None, "TypeError"]] * 2
