// The page: one model at a time, one piece of work at a time.

import { keepToken } from "./requests.js";
import { $, isStill } from "./dom.js";
import { Draw } from "./draw.js";
import { Models } from "./models.js";
import { Speak } from "./speak.js";

const POLL_MS = 2000; // while models are loading

const say = (text) => ($("status").textContent = text);
const panels = { sound: new Speak(say), picture: new Draw(say) };
const models = new Models(choose);
let panel;
let work = new AbortController();

function complain(error) {
  say("");
  $("error").textContent = error.message;
  $("error").scrollIntoView({ block: "nearest" });
  if (error.status !== 401) return;
  $("token-form").hidden = false;
  $("token").focus();
}

async function choose(model) {
  work.abort();
  say("");
  $("error").textContent = "";
  panel = panels[model.kind];
  for (const { stage } of Object.values(panels)) stage.hidden = stage !== panel.stage;
  $("make").hidden = $("result").hidden = false;
  $("go").textContent = panel.verb;
  $("temperature").value = model.temperature ?? 1;
  $("temperature").dispatchEvent(new Event("input"));
  await panel.show(model).catch(complain);
}

async function run() {
  work.abort();
  const mine = (work = new AbortController());
  say("");
  $("error").textContent = "";
  $("stop").disabled = false;
  bringIntoView($("result"));
  try {
    await panel.run(mine.signal);
  } catch (error) {
    if (!mine.signal.aborted) complain(error);
  }
  if (work !== mine) return;
  if (mine.signal.aborted) say("Stopped.");
  if (document.activeElement === $("stop")) $("go").focus();
  $("stop").disabled = true;
}

// On a phone the result is below the form.
function bringIntoView(part) {
  if (part.getBoundingClientRect().top < 0.8 * innerHeight) return;
  part.scrollIntoView({ behavior: isStill.matches ? "auto" : "smooth" });
}

async function refresh() {
  clearTimeout(refresh.timer);
  try {
    const areReady = await models.refresh();
    if (!areReady) refresh.timer = setTimeout(refresh, POLL_MS);
    $("token-form").hidden = true;
  } catch (error) {
    complain(error);
  }
}

$("make").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
$("make").addEventListener("change", () => panel.changed());
$("stop").addEventListener("click", () => work.abort());
$("new-seed").addEventListener("click", () => ($("seed").value = Math.floor(1e6 * Math.random())));
for (const output of document.querySelectorAll("output[for]")) {
  const range = $(output.htmlFor.value);
  range.addEventListener("input", () => {
    output.textContent = Number(range.value).toFixed(range.step === "1" ? 0 : 2);
  });
}
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken($("token").value.trim());
  $("error").textContent = "";
  refresh();
});
document.addEventListener("keydown", (event) => event.key === "Escape" && work.abort());
window.addEventListener("focus", refresh);
refresh();
