/** A bar of a conversation's tokens against the model's window. */

import { html } from "../vendor/htm-preact.js";
import { formatCount, formatTokens } from "./format.js";

// Before what was estimated, because the upstream did not count it.
const ABOUT = "≈ ";

/**
 * What was sent is filled, what the client sent beyond that is striped, and ticks mark the soft and hard thresholds.
 * Without a known window there is no bar, only the numbers.
 */
export function WindowBar({ row }) {
  const { window, soft, hard, sent_tokens: sent, received_tokens: received } = row;
  const shown = `${row.prompt_tokens > 0 ? "" : ABOUT}${formatTokens(sent)}`;
  if (!window) {
    return html`<div class="window-bar"><span class="figure">${shown} tokens</span>
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
    <span class="figure" aria-hidden="true">${shown}</span>
    <span class="note" aria-hidden="true">of ${formatTokens(window)}${received > sent ? `, ${ABOUT}${formatTokens(received)} received` : ""}</span>
  </div>`;
}

function describe({ window, soft, hard, sent_tokens: sent, received_tokens: received, prompt_tokens: counted }) {
  const lines = soft && hard ? ` Soft threshold ${formatCount(soft)}, hard threshold ${formatCount(hard)}.` : "";
  return `${counted > 0 ? "" : "About "}${formatCount(sent)} tokens sent and ${received > sent ? "about " : ""}${formatCount(received)} received, of a window of ${formatCount(window)}.${lines}`;
}
