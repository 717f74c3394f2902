/** The newest array as received beside the array as sent. */

import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { alignArrays, countFates, keepChanges, sumTokens } from "./alignment.js";
import { api } from "./api.js";
import { formatNumberOf, formatTime, formatTokens } from "./format.js";
import { useLoaded } from "./hooks.js";
import { Row } from "./message-row.js";
import { TextsRefused } from "./texts-refused.js";

// Rows that are drawn at once, and how many more with each press of the button.
const SHOWN_ROWS = 60;
const FATES = { folded: "folded", cleared: "cleared", shortened: "shortened", gone: "dropped by the client" };

export function Messages({ id, row }) {
  const isAllowed = row.texts?.allowed !== false;
  const loaded = useLoaded(async (signal) => (isAllowed ? api.messages(id, signal) : null), [id, isAllowed]);
  const { data, problem } = loaded;
  const isOutdated = data && row.last_seen && data.at && Date.parse(row.last_seen) - Date.parse(data.at) > 1_000;
  return html`<section aria-labelledby="messages-heading">
    <div class="title-row">
      <h2 id="messages-heading">What was received, and what was sent</h2>
      ${data && html`<p class="muted">${data.at && `Request of ${formatTime(data.at)}`}
        ${isOutdated && " · there is a newer one"} <button type="button" onClick=${loaded.reload}>Load the newest</button></p>`}
    </div>
    ${!isAllowed && html`<${TextsRefused} />`}
    ${problem && html`<${Refused} problem=${problem} onRetry=${loaded.reload} />`}
    ${isAllowed && !data && !problem && html`<p class="muted">Loading …</p>`}
    ${data && html`<${Arrays} key=${data.at} data=${data} />`}
  </section>`;
}

function Refused({ problem, onRetry }) {
  if (problem.status === 403) return html`<${TextsRefused} />`;
  return html`<div class="empty"><p>${problem.detail}</p>
    <button type="button" onClick=${onRetry}>Try again</button></div>`;
}

function Arrays({ data }) {
  const [shown, setShown] = useState(SHOWN_ROWS);
  const [isShort, setShort] = useState(false);
  const all = useMemo(() => alignArrays(data.received, data.sent), [data]);
  const rows = useMemo(() => (isShort ? keepChanges(all) : all), [all, isShort]);
  const originals = useMemo(() => new Map(data.received.map((entry) => [entry.position, entry])), [data]);
  return html`
    <p>${describe(data)}</p>
    <label class="check"><input type="checkbox" checked=${isShort} onChange=${(event) => setShort(event.target.checked)} />
      Show only what differs</label>
    <div class="pair heads" aria-hidden="true">
      <div>As received <span class="muted">${data.received.length} · ${formatTokens(sumTokens(data.received))} tokens</span></div>
      <div>As sent <span class="muted">${data.sent.length} · ${formatTokens(sumTokens(data.sent))} tokens</span></div>
    </div>
    <ol class="pairs" aria-label="Messages, as received and as sent">
      ${rows.slice(0, shown).map((row, index) => html`<${Row} key=${index} row=${row} originals=${originals} />`)}
    </ol>
    ${shown < rows.length &&
    html`<p class="more">
      <button type="button" onClick=${() => setShown(shown + SHOWN_ROWS)}>Show ${Math.min(SHOWN_ROWS, rows.length - shown)} more rows</button>
      <span class="muted">${shown} of ${rows.length} rows</span>
    </p>`}
  `;
}

function describe({ received, sent }) {
  const counts = countFates(received);
  const changed = Object.entries(FATES).filter(([fate]) => counts[fate]);
  if (changed.length === 0 && received.length === sent.length) {
    return `${formatNumberOf(received.length, "message")}, sent as received.`;
  }
  const words = changed.map(([fate, word]) => `${counts[fate]} ${word}`).join(", ");
  return `The client sent ${formatNumberOf(received.length, "message")}, the model got ${sent.length}` +
    (words ? `: ${words}, the rest sent as received.` : ".");
}
