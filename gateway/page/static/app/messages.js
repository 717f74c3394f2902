/** The newest array as received beside the array as sent. */

import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { alignArrays, countFates, keepChanges, sumTokens } from "./alignment.js";
import { announce } from "./announce.js";
import { api } from "./api.js";
import { Contained } from "./contained.js";
import { formatNumberOf, formatTime, formatTokens } from "./format.js";
import { useLoaded } from "./hooks.js";
import { Row } from "./message-row.js";
import { TextsRefused } from "./texts-refused.js";

// Messages that are loaded at once, and rows that are drawn at once.
const LOADED_MESSAGES = 200;
const SHOWN_ROWS = 60;
const FATES = { folded: "folded", cleared: "cleared", shortened: "shortened", gone: "dropped by the client" };

export function Messages({ id, row }) {
  const isAllowed = row.texts?.allowed !== false;
  const loaded = useArrays(id, isAllowed);
  const { data, problem } = loaded;
  const isOutdated = data?.at && row.last_seen && Date.parse(row.last_seen) - Date.parse(data.at) > 1_000;
  return html`<section aria-labelledby="messages-heading">
    <div class="title-row">
      <h2 id="messages-heading">What was received, and what was sent</h2>
      ${data && html`<p class="muted">${data.at && `Request of ${formatTime(data.at)}`}
        ${isOutdated && " · there is a newer one"} <button type="button" onClick=${loaded.reload}>Load the newest</button></p>`}
    </div>
    ${!isAllowed && html`<${TextsRefused} />`}
    ${problem && html`<${Refused} problem=${problem} onRetry=${loaded.reload} />`}
    ${isAllowed && !data && !problem && html`<p class="muted">Loading …</p>`}
    ${data && html`<${Arrays} key=${data.at} data=${data} onMore=${loaded.loadMore} />`}
  </section>`;
}

/** The first messages of both arrays, and the next ones on demand. */
function useArrays(id, isAllowed) {
  const load = (start, signal) => api.messages(id, { start, limit: LOADED_MESSAGES }, signal);
  const loaded = useLoaded(async (signal) => (isAllowed ? load(0, signal) : null), [id, isAllowed]);
  const loadMore = async () => {
    try {
      const more = await load(loaded.data.next);
      if (more.at === loaded.data.at) loaded.update((data) => joinPages(data, more));
      else loaded.reload();
    } catch (problem) {
      announce(problem.detail);
    }
  };
  return { ...loaded, loadMore };
}

function joinPages(data, more) {
  return { ...more, received: [...data.received, ...more.received], sent: [...data.sent, ...more.sent] };
}

function Refused({ problem, onRetry }) {
  if (problem.status === 403) return html`<${TextsRefused} />`;
  return html`<div class="empty"><p>${problem.detail}</p>
    <button type="button" onClick=${onRetry}>Try again</button></div>`;
}

function Arrays({ data, onMore }) {
  const [shown, setShown] = useState(SHOWN_ROWS);
  const [isShort, setShort] = useState(false);
  const all = useMemo(() => alignArrays(data.received, data.sent), [data]);
  const rows = useMemo(() => (isShort ? keepChanges(all) : all), [all, isShort]);
  const showMore = async () => {
    if (shown + SHOWN_ROWS > rows.length && data.next != null) await onMore();
    setShown(shown + SHOWN_ROWS);
  };
  return html`
    <p>${describe(data)}</p>
    <label class="check"><input type="checkbox" checked=${isShort} onChange=${(event) => setShort(event.target.checked)} />
      Show only what differs</label>
    <div class="pair heads" aria-hidden="true">
      <div>As received <${Size} entries=${data.received} total=${data.total?.received} /></div>
      <div>As sent <${Size} entries=${data.sent} total=${data.total?.sent} /></div>
    </div>
    <ol class="pairs" aria-label="Messages, as received and as sent">
      ${rows.slice(0, shown).map((row, index) => html`<${Contained} key=${index} of="li"><${Row} row=${row} /><//>`)}
    </ol>
    ${(shown < rows.length || data.next != null) &&
    html`<p class="more">
      <button type="button" onClick=${showMore}>Show more messages</button>
      <span class="muted">${Math.min(shown, rows.length)} rows of ${data.next == null ? rows.length : "more"}</span>
    </p>`}
  `;
}

/** total: of the whole array, of which the entries are the beginning. */
function Size({ entries, total = entries.length }) {
  const part = total > entries.length ? `${entries.length} of ${total}` : total;
  return html`<span class="muted">${part} · ≈ ${formatTokens(sumTokens(entries))} tokens</span>`;
}

/** Of what is loaded: of a long history that is its beginning. */
function describe({ received, sent, next }) {
  const counts = countFates(received);
  const changed = Object.entries(FATES).filter(([fate]) => counts[fate]);
  const which = `${next == null ? "" : "first "}${formatNumberOf(received.length, "message")}`;
  if (changed.length === 0 && received.length === sent.length) return `The client's ${which}, sent as received.`;
  const words = changed.map(([fate, word]) => `${counts[fate]} ${word}`).join(", ");
  return `Of the client's ${which} the model got ${sent.length}` + (words ? `: ${words}, the rest as received.` : ".");
}
