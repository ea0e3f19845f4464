// Speech: what to say, the stream of it, and the figures on the way.

import { send, sendJson, chunksOf, pathOf } from "./requests.js";
import { $, brief, duration, isStill, numberIn, options, showRows, since, terms } from "./dom.js";
import { Player } from "./player.js";
import { fileOf, recordingOf, samplesOf } from "./wav.js";
import { Wave } from "./wave.js";

const STILL_MS = 250; // between two places of the playhead where nothing should move

export class Speak {
  constructor(say) {
    this.say = say;
    this.verb = "Speak";
    this.stage = $("sound");
    this.wave = new Wave($("wave"), $("spectrum"));
    $("play").addEventListener("click", () => this.#toggle());
    $("position").addEventListener("input", () => this.#play(numberIn("position")));
    $("plot").addEventListener("click", (event) => {
      const { left, width } = $("plot").getBoundingClientRect();
      this.#play((this.seconds * (event.clientX - left)) / width);
    });
  }

  // Of what has arrived.
  get seconds() {
    return this.wave.length / this.wave.rateHz;
  }

  // Whether there is something to speak from.
  get isAgain() {
    return this.model.condition === "frames";
  }

  get source() {
    return this.isAgain ? document.querySelector("[name=source]:checked").value : "seconds";
  }

  async show(model) {
    this.model = model;
    const speakers = (model.speakers ?? []).filter(Boolean);
    options($("speaker"), speakers.map((name) => [name, name]));
    $("top").textContent = `${model.sample_rate_hz / 2000} kHz`;
    $("seconds").max = model.max_seconds;
    $("offers-text").hidden = model.text === false;
    if (model.text === false && this.source === "text") $("make").elements.source.value = "example";
    this.#clear();
    this.changed();
    this.examples = this.isAgain && this.#showExamples(model);
    await this.examples;
  }

  async #showExamples(model) {
    const { examples } = await (await send(pathOf(model, "/examples"))).json();
    if (this.model !== model) return;
    this.texts = new Map(examples.map(({ name, text }) => [name, text]));
    options($("example"), examples.map(({ name, text, seconds }) => [name, `${seconds.toFixed(1)} s · ${text}`]));
    this.changed();
  }

  changed() {
    showRows(this.source, this.isAgain && "source", $("speaker").options.length > 1 && "speaker");
    $("example-text").textContent = this.texts?.get($("example").value) ?? "";
  }

  // Speaks; returns when all of it is there and has been heard.
  async run(signal) {
    this.#clear();
    const player = (this.player = new Player(this.model.sample_rate_hz));
    signal.addEventListener("abort", () => player.silence());
    this.say("Speaking…");
    if (this.source === "example") await this.examples; // which one is not known before
    const started = performance.now();
    const response = await this.#send(signal);
    const samples = Number(response.headers.get("X-Num-Samples"));
    this.wave.begin(player.rateHz, samples);
    player.begin(samples / player.rateHz);
    try {
      let first;
      for await (const part of samplesOf(chunksOf(response))) {
        first ??= since(started);
        this.parts.push(part);
        this.wave.add(part);
        player.add(part);
        this.#measure(first, since(started), samples / player.rateHz);
        if (this.parts.length === 1) this.#follow();
      }
      player.finish();
      this.say(`Made ${duration(this.seconds)} of sound in ${duration(since(started))}.`);
    } finally {
      if (this.player === player && this.parts.length) this.#offer();
    }
    while (player.isSounding && !signal.aborted) await new Promise((done) => setTimeout(done, 50));
  }

  async #send(signal) {
    const { source } = this;
    const path = pathOf(this.model, ":speak");
    const fields = { seed: numberIn("seed"), temperature: numberIn("temperature"), format: "wav" };
    if ($("speaker").options.length > 1) fields.speaker = $("speaker").value;
    if (source !== "recording") {
      fields[source] = source === "seconds" ? numberIn(source) : $(source).value;
      return sendJson(path, fields, signal);
    }
    const [file] = $("recording").files;
    if (!file) throw new Error("Choose a recording first.");
    const body = await recordingOf(file, this.model.sample_rate_hz);
    const headers = { "Content-Type": body.type };
    return send(`${path}?${new URLSearchParams(fields)}`, { method: "POST", headers, body, signal });
  }

  #clear() {
    this.player?.close();
    this.player = null;
    this.parts = [];
    this.paused = 0;
    this.wave.begin(this.model.sample_rate_hz, 0);
    this.#measure();
    $("play").disabled = $("position").disabled = $("playhead").hidden = $("wav").hidden = true;
    $("plot").ariaLabel = "Waveform and spectrogram, empty";
    $("play").textContent = "Play";
    $("position").value = 0;
    $("clock").textContent = "";
  }

  #measure(first, seconds, total) {
    const factor = seconds / this.seconds;
    terms($("readings"), [
      ["First sound", first ? duration(first) : "–"],
      ["Real-time factor", factor ? brief(factor, 2) : "–", factor ? `${brief(1 / factor, 2)} × real time` : ""],
      ["Made", factor ? duration(this.seconds) : "–", total > this.seconds ? `of ${duration(total)}` : ""],
    ]);
  }

  // What has arrived can be heard again and kept, also where it is not all.
  #offer() {
    this.wave.finish();
    $("play").disabled = $("position").disabled = false;
    $("plot").ariaLabel = `Waveform and spectrogram of ${this.seconds.toFixed(1)} seconds of sound`;
    URL.revokeObjectURL($("wav").href);
    const href = URL.createObjectURL(fileOf(this.parts, this.wave.rateHz));
    Object.assign($("wav"), { href, download: `${this.model.id}-${numberIn("seed")}.wav`, hidden: false });
    this.#follow();
  }

  #toggle() {
    if (!this.player.isSounding) return this.#play(this.paused);
    this.paused = this.player.position;
    this.player.silence();
  }

  #play(from) {
    if ($("play").disabled) return;
    this.player.play(this.parts, Math.min(from, this.seconds - 0.01));
    this.paused = 0;
    this.#follow();
  }

  // Moves the playhead until the sound ends.
  #follow() {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.frame);
    const { player } = this;
    const step = () => {
      if (player !== this.player) return;
      const position = player.isSounding ? player.position : this.paused;
      const whole = this.wave.total / this.wave.rateHz || 1;
      $("play").textContent = player.isSounding ? "Pause" : "Play";
      $("playhead").hidden = !position;
      $("playhead").style.transform = `translateX(${(position / whole) * $("plot").clientWidth}px)`;
      $("position").max = whole;
      $("position").value = position;
      $("clock").textContent = `${position.toFixed(1)} s`;
      if (!player.isSounding && !$("play").disabled) return;
      this.frame = isStill.matches ? setTimeout(step, STILL_MS) : requestAnimationFrame(step);
    };
    step();
  }
}
