// Images: what to draw, and how they grow scale by scale.

import { RequestError, sendJson, chunksOf, pathOf } from "./requests.js";
import { $, duration, element, isStill, numberIn, options, showRows, since, terms } from "./dom.js";

const GROW_MS = 160; // that each scale can be seen at least

export class Draw {
  constructor(say) {
    this.say = say;
    this.verb = "Draw";
    this.stage = $("images");
    $("scale").addEventListener("input", () => this.#showScale(numberIn("scale")));
  }

  // What conditions the model: "class", "number" for a class without a name, "caption", "map" or null.
  get condition() {
    const { condition, classes } = this.model;
    return condition === "class" && !classes?.length ? "number" : condition;
  }

  async show(model) {
    this.model = model;
    this.#clear(0);
    options($("class"), (model.classes ?? []).map((name) => [name, name]));
    options($("captions"), (model.captions ?? []).map((caption) => [caption, caption]));
    $("caption").value = model.captions?.[0] ?? "";
    this.changed();
  }

  changed() {
    showRows(this.condition, this.model.guidance && "guidance", "num");
  }

  // Draws; returns when all the images are there and have grown.
  async run(signal) {
    const { model, condition } = this;
    const fields = { seed: numberIn("seed"), num: numberIn("num"), temperature: numberIn("temperature") };
    if (model.guidance) fields.guidance = numberIn("guidance");
    if (condition === "number") fields.class = numberIn("number");
    else if (condition && condition !== "map") fields[condition] = $(condition).value;
    this.#clear(fields.num, [model.id, fields.class ?? fields.caption ?? [], `seed ${fields.seed}`].flat().join(" "));
    this.say("Drawing…");
    const started = performance.now();
    let count = 0;
    let first;
    const response = await sendJson(pathOf(model, ":draw"), fields, signal);
    for await (const { error, picture: number, side, last, png } of linesOf(response)) {
      if (error) throw new RequestError(error, 200);
      this.images[number].add(side, png, last);
      if (!last) continue;
      first ??= since(started);
      this.#measure(first, since(started), ++count, fields.num);
    }
    const seconds = since(started);
    await Promise.all(this.images.map((image) => image.grown(signal)));
    signal.throwIfAborted();
    this.#offerScales();
    this.say(`Drew ${count} ${count === 1 ? "image" : "images"} in ${duration(seconds)}.`);
  }

  #measure(first, seconds, count, all) {
    terms($("readings"), [
      ["First image", first ? duration(first) : "–"],
      ["Each", count ? duration(seconds / count) : "–"],
      ["Drawn", count ?? "–", count ? `of ${all} in ${duration(seconds)}` : ""],
    ]);
  }

  #clear(count, title) {
    this.images = Array.from({ length: count }, (_, n) => new GrowingImage(title, n));
    $("grid").replaceChildren(...this.images.map(({ figure }) => figure));
    $("grid").className = count === 1 ? "single" : "";
    $("scale-row").hidden = true;
    this.#measure();
  }

  // The scales can be looked at again.
  #offerScales() {
    const last = this.images[0].scales.length - 1;
    $("scale-row").hidden = last < 1;
    $("scale").max = $("scale").value = last;
    this.#showScale(last);
  }

  #showScale(place) {
    const { side } = this.images[0].scales[place];
    $("scale-side").textContent = `${side} × ${side}`;
    for (const image of this.images) image.show(place);
  }
}

class GrowingImage {
  constructor(title, number) {
    this.title = `${title}, image ${number + 1}`;
    this.scales = [];
    this.shown = -1;
    this.image = element("img", { alt: "", hidden: true });
    this.link = element("a", { textContent: "↓ PNG", hidden: true });
    this.link.ariaLabel = `Download PNG of image ${number + 1}`;
    this.side = element("span", { textContent: `${number + 1}` });
    this.figure = element("figure", {}, element("div", { className: "frame" }, this.image),
      element("figcaption", {}, this.side, this.link));
  }

  add(side, png, isLast) {
    const address = `data:image/png;base64,${png}`;
    this.scales.push({ side, address });
    if (isLast) {
      const name = `${this.title.replace(/[^\p{L}\p{N}]+/gu, "-")}.png`;
      Object.assign(this.link, { href: address, download: name, hidden: false });
    }
    this.growing ??= this.#grow();
  }

  show(place) {
    const { side, address } = this.scales[place];
    this.shown = place;
    Object.assign(this.image, { src: address, hidden: false, alt: `${this.title}, ${side} by ${side}` });
    this.side.textContent = `${side} × ${side}`;
  }

  // Resolves when the last of its scales is shown; at once after an abort.
  async grown(signal) {
    while (this.growing && !signal.aborted) await this.growing;
  }

  async #grow() {
    while (this.shown < this.scales.length - 1) {
      this.show(isStill.matches ? this.scales.length - 1 : this.shown + 1);
      await new Promise((done) => setTimeout(done, isStill.matches ? 0 : GROW_MS));
    }
    this.growing = null;
  }
}

// The values of newline-delimited JSON, as they come.
async function* linesOf(response) {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of chunksOf(response)) {
    text += decoder.decode(chunk, { stream: true });
    const lines = text.split("\n");
    text = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}
