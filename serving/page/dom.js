// The few words that every part of the page needs.

export const $ = (id) => document.getElementById(id);

export const isStill = matchMedia("(prefers-reduced-motion: reduce)");

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export function options(select, pairs) {
  select.replaceChildren(...pairs.map(([value, textContent]) => element("option", { value, textContent })));
}

// Shows these rows of the form, and no others.
export function showRows(...names) {
  for (const row of document.querySelectorAll("[data-row]")) row.hidden = !names.includes(row.dataset.row);
}

// Terms with what is known of each, and a remark.
export function terms(list, rows) {
  list.replaceChildren(...rows.map(([name, value, remark = ""]) => element("div", {},
    element("dt", { textContent: name }), element("dd", {}, String(value), " ", element("small", { textContent: remark })))));
}

export function duration(seconds) {
  return seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
}

// A number of so many digits, more where they stand before the point.
export function brief(number, digits) {
  const text = Math.abs(number) < 10 ** digits ? number.toPrecision(digits) : number.toFixed(0);
  return text.replace("-", "−");
}

// Seconds since a time of `performance.now()`.
export const since = (started) => (performance.now() - started) / 1000;

// The number in a field; the form's own check has refused what is none.
export const numberIn = (id) => Number($(id).value);
