"""A visitor of the page who notes what it does, and bundles that are worth looking at."""

import re
import threading
import time

import numpy as np
from fake_bundle import FakeImages, FakeSound

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


class Shapes(FakeImages):
    """A disc whose colour label and seed name."""

    def call(self, signature, inputs):
        outputs = super().call(signature, inputs)
        for name, images in outputs.items():
            side = images.shape[1]
            y, x = np.mgrid[:side, :side] / (side - 1) - 0.5
            disc = (np.hypot(x, y) < 0.4)[None, :, :, None]
            colour = images[:, :1, :1] + np.array([40, 90, 20], np.uint8)
            outputs[name] = np.where(disc, colour, np.uint8(230)).astype(np.uint8)
        return outputs


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

    def scheduled(self):
        return self.page.evaluate("window.scheduled")

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
