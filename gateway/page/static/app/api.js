/**
 * Requests to the admin API.
 *
 * The token lives in this tab's session storage and leaves it only in the Authorization header.
 */

const BASE = "api/v1";
const TOKEN_KEY = "gateway-admin-token";

/** What the server refused. `status` 0: it could not be reached. `detail` is a sentence for the reader. */
export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    this.status = status;
    this.title = title;
    this.detail = detail || title;
  }
}

const tokenListeners = new Set();

/** Calls `listener` each time the server wants another token. Returns what ends it. */
export function onTokenRequired(listener) {
  tokenListeners.add(listener);
  return () => tokenListeners.delete(listener);
}

export function hasToken() {
  return sessionStorage.getItem(TOKEN_KEY) !== null;
}

export function setToken(token) {
  sessionStorage.setItem(TOKEN_KEY, token);
}

/** A response with a good status. Throws Problem, and AbortError if `signal` aborts. */
export async function send(method, path, { body, signal, query } = {}) {
  const headers = {};
  const token = sessionStorage.getItem(TOKEN_KEY);
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(`${BASE}${path}${renderQuery(query)}`, {
      method,
      headers,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The gateway cannot be reached.", "");
  }
  if (response.ok) return response;
  const problem = await readProblem(response);
  if (response.status === 401) tokenListeners.forEach((listener) => listener(token !== null));
  throw problem;
}

async function readProblem(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // Not JSON: the status says enough.
  }
  const title = body.title || body.error || `The gateway answered ${response.status}.`;
  return new Problem(response.status, String(title), String(body.detail || ""));
}

function renderQuery(query = {}) {
  const given = Object.entries(query).filter(([, value]) => value);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

async function ask(method, path, options) {
  return (await send(method, path, options)).json();
}

const one = (id) => `/conversations/${encodeURIComponent(id)}`;
const summary = (id, key) => `${one(id)}/summaries/${encodeURIComponent(key)}`;

export const api = {
  gateway: (signal) => ask("GET", "/gateway", { signal }),
  totals: (signal) => ask("GET", "/totals", { signal }),
  /** query: tenant, model, purpose, q, limit, cursor; empty ones are left out. */
  conversations: (query, signal) => ask("GET", "/conversations", { query, signal }),
  conversation: (id, signal) => ask("GET", one(id), { signal }),
  requests: (id, signal) => ask("GET", `${one(id)}/requests`, { signal }),
  /** query: start, limit. */
  messages: (id, query, signal) => ask("GET", `${one(id)}/messages`, { query, signal }),
  /** query: q, limit. */
  search: (id, query, signal) => ask("GET", `${one(id)}/search`, { query, signal }),
  summaries: (id, signal) => ask("GET", `${one(id)}/summaries`, { signal }),
  session: (id, signal) => ask("GET", `${one(id)}/summary`, { signal }),
  diff: (id, signal) => ask("GET", `${one(id)}/diff`, { signal }),
  log: (id, signal) => ask("GET", `${one(id)}/log`, { signal }),
  compact: (id, instructions) => ask("POST", `${one(id)}/compact`, { body: { instructions } }),
  /** version: that the text was written for; another one in the meantime is refused. */
  saveSummary: (id, key, text, version) => ask("PUT", summary(id, key), { body: { text, based_on: version } }),
  restoreSummary: (id, key, version) => ask("POST", `${summary(id, key)}/restore`, { body: { version } }),
  deleteConversation: (id) => ask("DELETE", one(id)),
};
