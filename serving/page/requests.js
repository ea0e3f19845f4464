// Requests to the server that this page came from, and what it says when it refuses.

const KEY = "onepass-token";

export class RequestError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function keepToken(token) {
  sessionStorage.setItem(KEY, token);
}

// The response, once the server has agreed; RequestError with its own words otherwise.
export async function send(path, { headers = {}, ...options } = {}) {
  const token = sessionStorage.getItem(KEY);
  const bearer = token ? { Authorization: `Bearer ${token}` } : {};
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...headers, ...bearer } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The server cannot be reached.", 0);
  }
  if (!response.ok) throw new RequestError(await words(response), response.status);
  return response;
}

export function sendJson(path, value, signal) {
  const headers = { "Content-Type": "application/json" };
  return send(path, { method: "POST", headers, body: JSON.stringify(value), signal });
}

export function pathOf(model, verb) {
  return `v1/models/${encodeURIComponent(model.id)}${verb}`;
}

// The chunks of a response's body; a body that breaks off is said in words.
export async function* chunksOf(response) {
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The server broke off before the end.", 0);
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function words(response) {
  let said = `The server answered ${response.status}.`;
  try {
    const { error } = await response.json();
    said = error.message ?? error;
  } catch {
    // No JSON: the number says what there is to say.
  }
  const seconds = response.headers.get("Retry-After");
  const request = response.headers.get("X-Request-Id");
  if (seconds) said += ` Try again in ${seconds} s.`;
  if (response.status >= 500 && request) said += ` (Request ${request}.)`;
  return said;
}
