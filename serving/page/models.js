// The models that are served: the list to choose from, and what is known of each.

import { send } from "./requests.js";
import { $, brief, element, terms } from "./dom.js";

const GROUPS = { sound: "Sounds", picture: "Images" };
const TITLES = { ...GROUPS, array: "Arrays (API)", "": "Not ready" };
const LARGE = { pesq: "PESQ", stoi: "STOI", stft: "STFT", kl: "KL", db: "dB", f0: "F0" };

export class Models {
  // `chosen` is called with the model whenever another one is chosen.
  constructor(chosen) {
    this.form = $("models");
    this.known = new Map();
    this.shown = "";
    this.chosen = chosen;
    this.form.addEventListener("change", (event) => this.#choose(event.target.value));
    this.form.addEventListener("submit", (event) => event.preventDefault());
  }

  // Asks for the list; whether all of it is ready.
  async refresh() {
    const { data } = await (await send("v1/models")).json();
    const text = JSON.stringify(data);
    if (text !== this.shown) this.#show(data);
    this.shown = text;
    return data.length > 0 && data.every((model) => model.kind);
  }

  #show(models) {
    this.known = new Map(models.map((model) => [model.id, model]));
    const hadFocus = this.form.contains(document.activeElement);
    const groups = Object.entries(TITLES).map(([kind, title]) =>
      [title, models.filter((model) => (TITLES[model.kind] ? model.kind : "") === kind)]);
    this.form.replaceChildren(...groups.filter(([, some]) => some.length).map(([title, some]) =>
      element("fieldset", {}, element("legend", { textContent: title }), ...some.map(rowOf))));
    if (!models.length) this.form.append("No model is served yet.");
    const usable = models.filter((model) => GROUPS[model.kind]);
    const current = usable.find((model) => model.id === this.current?.id)
      ?? usable.find((model) => model.kind === "sound") ?? usable[0];
    if (!current) return;
    const radio = [...this.form.elements].find((input) => input.value === current.id);
    radio.checked = true;
    if (hadFocus) radio.focus();
    this.#choose(current.id);
  }

  #choose(id) {
    const model = this.known.get(id);
    if (JSON.stringify(model) === JSON.stringify(this.current)) return;
    this.current = model;
    showCard(model);
    this.chosen(model);
  }
}

function rowOf(model) {
  const isUsable = Boolean(GROUPS[model.kind]);
  const input = element("input", { type: "radio", name: "model", value: model.id, disabled: !isUsable });
  return element("label", { className: "model" }, input,
    element("span", { textContent: model.id }), element("small", { textContent: gist(model) }));
}

function gist(model) {
  if (model.kind === "sound") return `${model.sample_rate_hz / 1000} kHz`;
  if (model.kind === "picture") return `${model.size} × ${model.size}`;
  if (model.kind === "array") return "array";
  return model.versions.some(({ state }) => state === "START" || state === "LOADING") ? "loading" : "unavailable";
}

function showCard(model) {
  $("card").hidden = false;
  $("name").textContent = model.id;
  const facts = [
    ["Version", model.version],
    ["Preset", model.preset],
    ["Sample rate", model.sample_rate_hz && `${model.sample_rate_hz.toLocaleString("en")} Hz`],
    ["Scales", model.sizes?.length > 1 && model.sizes.join(" → ")],
    ["Training data", model.licence],
  ];
  terms($("facts"), facts.filter(([, value]) => value));
  const rows = qualityRows(model.quality ?? {});
  $("quality").hidden = !rows.length;
  $("quality").querySelector("tbody").replaceChildren(...rows);
}

// A row for every measure, with its interval where it has one.
function qualityRows({ measures = {}, ...rest }) {
  const rows = Object.entries({ ...rest, ...measures }).map(([name, value]) => {
    const { mean, low, high } = typeof value === "number" ? { mean: value } : value ?? {};
    if (typeof mean !== "number") return null;
    const interval = typeof low === "number" ? `${brief(low, 3)} to ${brief(high, 3)}` : "";
    return element("tr", {}, element("th", { scope: "row", textContent: inWords(name) }),
      element("td", { textContent: brief(mean, 3) }), element("td", { textContent: interval }));
  });
  return rows.filter(Boolean);
}

function inWords(name) {
  return name.split("_").map((word) => LARGE[word] ?? word).join(" ");
}
