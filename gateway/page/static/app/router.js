/**
 * Which view the address names. Addresses are fragments, so the server knows one page only:
 * `#/` with the overview's filters as a query, and `#/conversations/ID`.
 */

import { useEffect, useState } from "../vendor/htm-preact.js";

/** `{view: "overview", query: {…}}` or `{view: "conversation", id}`. */
export function parseRoute(hash) {
  const [path, search = ""] = hash.replace(/^#/, "").split("?");
  const found = path.match(/^\/conversations\/([0-9a-f]{1,64})$/);
  if (found) return { view: "conversation", id: found[1] };
  return { view: "overview", query: Object.fromEntries(new URLSearchParams(search)) };
}

export function renderOverview(query = {}) {
  const given = Object.entries(query).filter(([, value]) => value);
  return given.length ? `#/?${new URLSearchParams(given)}` : "#/";
}

export const renderConversation = (id) => `#/conversations/${id}`;

export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const follow = () => setHash(location.hash);
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return parseRoute(hash);
}

/** Changes the address without a new entry in the browser's history: for filters that are being typed. */
export function replaceRoute(hash) {
  history.replaceState(null, "", hash);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
