/** Messages to the reader: shown for a while at the edge of the page, and read out by screen readers. */

import { html, useEffect, useState } from "../vendor/htm-preact.js";

const SHOWN_MS = 8_000;
const listeners = new Set();
let said = 0;

/** Says what has happened. Politely: a screen reader finishes its sentence first. */
export function announce(text) {
  said += 1;
  listeners.forEach((listener) => listener(text));
}

/** How much was said so far. */
export function countAnnouncements() {
  return said;
}

export function Announcer() {
  const [text, setText] = useState("");
  useEffect(() => {
    listeners.add(setText);
    return () => listeners.delete(setText);
  }, []);
  useEffect(() => {
    if (!text) return undefined;
    const timer = setTimeout(() => setText(""), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<div class="announcer" role="status" aria-live="polite">
    ${text && html`<p>${text}</p>`}
  </div>`;
}
