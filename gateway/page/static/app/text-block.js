/**
 * Texts of conversations. They are hostile: they are only ever text nodes, never markup.
 *
 * A long one is drawn in pieces, as many as the reader asks for: a line of a megabyte would freeze the page.
 */

import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { formatCount } from "./format.js";
import { readBlocks, renderJson } from "./message-text.js";

const PIECE_CHARS = 20_000;
const MORE_PIECES = 10;

/** A message's blocks, or its JSON. */
export function MessageText({ message }) {
  const [isRaw, setRaw] = useState(false);
  const blocks = useMemo(() => (isRaw ? [{ label: "JSON", text: renderJson(message) }] : readBlocks(message)), [message, isRaw]);
  if (message == null) return html`<p class="muted message-text">The client no longer sends this message, and its text is not in memory.</p>`;
  return html`<div class="message-text">
    ${blocks.map(({ label, text }, index) => html`<div key=${index}>
      ${label && html`<p class="label">${label}</p>`}
      <${LongText} text=${text} />
    </div>`)}
    <button type="button" class="quiet" aria-pressed=${isRaw} onClick=${() => setRaw(!isRaw)}>JSON</button>
  </div>`;
}

/** Direction by its own characters, so that right-to-left text does not reorder what surrounds it. */
export function LongText({ text }) {
  const [pieces, setPieces] = useState(1);
  const all = useMemo(() => splitText(text, PIECE_CHARS), [text]);
  const shownChars = all.slice(0, pieces).reduce((sum, piece) => sum + piece.length, 0);
  return html`
    <div class="text" dir="auto" role="group" aria-label="Text" tabindex="0">${all.slice(0, pieces).map((piece, index) => html`<span key=${index}>${piece}</span>`)}</div>
    ${pieces < all.length &&
    html`<p class="more"><button type="button" onClick=${() => setPieces(pieces + MORE_PIECES)}>Show more of this text</button>
      <span class="muted">${formatCount(shownChars)} of ${formatCount(text.length)} characters</span></p>`}
  `;
}

/** Pieces of at most `size` UTF-16 units, without cutting a character that takes two. */
export function splitText(text, size) {
  const pieces = [];
  for (let start = 0; start < text.length; ) {
    let end = Math.min(start + size, text.length);
    const last = text.charCodeAt(end - 1);
    if (end < text.length && last >= 0xd800 && last < 0xdc00) end -= 1;
    pieces.push(text.slice(start, end));
    start = end;
  }
  return pieces.length ? pieces : [""];
}
