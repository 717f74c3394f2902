/** The style sheet's colours for what is drawn on a canvas. */

import { CHANGES } from "./changes.js";

export function readColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    received: read("--received"),
    receivedFill: read("--received-fill"),
    sent: read("--accent"),
    soft: read("--soft"),
    hard: read("--hard"),
    muted: read("--muted"),
    grid: read("--line"),
    surface: read("--surface"),
    marks: Object.fromEntries(Object.entries(CHANGES).map(([change, { colour }]) => [change, read(colour)])),
  };
}

/** Calls `listener` when the reader changes between light and dark. Returns what ends it. */
export function watchColours(listener) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", listener);
  return () => dark.removeEventListener("change", listener);
}
