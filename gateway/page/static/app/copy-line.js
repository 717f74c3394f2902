/** One line to paste somewhere, with a button that copies it. */

import { html, useRef } from "../vendor/htm-preact.js";
import { announce } from "./announce.js";

export function CopyLine({ label, text }) {
  const code = useRef(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      announce(`Copied: ${text}`);
    } catch {
      // Browsers allow it on HTTPS and loopback only. Elsewhere the line is selected, and the reader copies it.
      getSelection().selectAllChildren(code.current);
      announce("Selected. Copy it with your keyboard.");
    }
  };
  return html`<div class="copy-line">
    <code ref=${code}>${text}</code>
    <button type="button" onClick=${copy} aria-label=${`Copy: ${label}`}>Copy</button>
  </div>`;
}
