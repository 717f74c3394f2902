/** A bar of a conversation's tokens against the model's window. */

import { html } from "../vendor/htm-preact.js";
import { formatCount, formatTokens } from "./format.js";

/**
 * What was sent is filled, what the client sent beyond that is striped, and ticks mark the soft and hard thresholds.
 * Without a known window there is no bar, only the numbers.
 */
export function WindowBar({ row }) {
  const { window, soft, hard, sent_tokens: sent, received_tokens: received } = row;
  if (!window) {
    return html`<div class="window-bar"><span class="figure">${formatTokens(sent)} tokens</span>
      <span class="note">window unknown</span></div>`;
  }
  // The bar is the window, in every row: what goes beyond it fills the bar, and the number says how far.
  const at = (tokens) => `${Math.min(100, (100 * (tokens ?? 0)) / window).toFixed(2)}%`;
  const level = sent >= hard && hard ? "over-hard" : sent >= soft && soft ? "over-soft" : "";
  return html`<div class="window-bar">
    <div class="track ${level}" role="img" aria-label=${describe(row)}>
      <div class="received" style=${{ width: at(received) }}></div>
      <div class="sent" style=${{ width: at(sent) }}></div>
      ${soft && html`<div class="tick soft" style=${{ left: at(soft) }}></div>`}
      ${hard && html`<div class="tick hard" style=${{ left: at(hard) }}></div>`}
    </div>
    <span class="figure" aria-hidden="true">${formatTokens(sent)}</span>
    <span class="note" aria-hidden="true">of ${formatTokens(window)}${received > sent ? `, ${formatTokens(received)} received` : ""}</span>
  </div>`;
}

function describe({ window, soft, hard, sent_tokens: sent, received_tokens: received }) {
  const lines = soft && hard ? ` Soft threshold ${formatCount(soft)}, hard threshold ${formatCount(hard)}.` : "";
  return `${formatCount(sent)} tokens sent and ${formatCount(received)} received, of a window of ${formatCount(window)}.${lines}`;
}
