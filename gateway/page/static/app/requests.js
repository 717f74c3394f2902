/** The requests of a conversation: a chart, and the same numbers as a table. */

import { html, useState } from "../vendor/htm-preact.js";
import { CHANGES } from "./changes.js";
import { Chart } from "./chart.js";
import { formatCount, formatNumberOf, formatTime, UNKNOWN } from "./format.js";

const TABLE_ROWS = 100;

export function Requests({ loaded }) {
  const { data, problem } = loaded;
  const points = data?.requests ?? [];
  return html`<section aria-labelledby="requests-heading">
    <h2 id="requests-heading">Tokens per request</h2>
    ${problem && html`<p class="error" role="alert">${problem.detail}</p>`}
    ${data && points.length === 0 && html`<p class="empty">No request yet.</p>`}
    ${points.length > 0 &&
    html`<${Chart} points=${points} leftOff=${data.left_off ?? 0} />
      <${RequestTable} points=${points} leftOff=${data.left_off ?? 0} />`}
  </section>`;
}

/** Newest first, drawn only while it is open. */
function RequestTable({ points, leftOff }) {
  const [isOpen, setOpen] = useState(false);
  const [shown, setShown] = useState(TABLE_ROWS);
  const newest = points.slice(-shown).reverse();
  return html`<details class="request-table" onToggle=${(event) => setOpen(event.target.open)}>
    <summary>The same as a table</summary>
    ${isOpen &&
    html`<div class="scroll" role="region" aria-label="Requests" tabindex="0"><table>
      <caption class="hidden">Requests, newest first, in tokens</caption>
      <thead><tr>
        <th scope="col">Time</th>
        ${["Messages", "Received", "Sent", "Billed prompt", "Cached", "Output", "Soft", "Hard"].map(
          (name) => html`<th scope="col" class="number">${name}</th>`)}
        <th scope="col">Plan</th><th scope="col">Change</th>
      </tr></thead>
      <tbody>${newest.map((point) => html`<tr key=${point.at}>
        <th scope="row">${formatTime(point.at)}</th>
        ${[point.messages, point.received, point.sent, point.prompt_tokens, point.cached_tokens, point.output_tokens,
          point.soft, point.hard].map((value) => html`<td class="number">${formatCount(value)}</td>`)}
        <td>${point.plan}</td><td>${CHANGES[point.change]?.name ?? UNKNOWN}</td>
      </tr>`)}</tbody>
    </table></div>
    ${shown < points.length &&
    html`<p class="more"><button type="button" onClick=${() => setShown(shown + TABLE_ROWS)}>Show older requests</button></p>`}
    ${leftOff > 0 && html`<p class="muted">${formatNumberOf(leftOff, "older request")} left out.</p>`}`}
  </details>`;
}
