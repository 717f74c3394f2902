/** What all conversations together saved and cost: one line of figures, and a table with a row for each tenant. */

import { html } from "../vendor/htm-preact.js";
import { Figures } from "./figures.js";
import { formatCount, formatShare, formatTokens, formatUsd } from "./format.js";
import { sumTotals } from "./rows.js";

const COLUMNS = [
  ["Conversations", (row) => formatCount(row.conversations)],
  ["Requests", (row) => formatCount(row.requests)],
  ["Received tokens", (row) => formatTokens(row.received_tokens)],
  ["Sent tokens", (row) => formatTokens(row.sent_tokens)],
  ["Saved tokens", (row) => formatTokens(row.saved_tokens)],
  ["Saved", (row) => formatUsd(row.saved_usd)],
  ["Spent", (row) => formatUsd(row.spent_usd)],
  ["Summaries", (row) => formatUsd(row.summary_usd)],
  ["Compactions", (row) => formatCount(row.compactions)],
  ["Prunings", (row) => formatCount(row.prunings)],
  ["Cache breaks", (row) => formatCount(row.cache_breaks)],
];

export function Totals({ tenants }) {
  const all = sumTotals(tenants);
  return html`<section class="totals" aria-labelledby="totals-heading">
    <h2 id="totals-heading" class="hidden">Totals</h2>
    <${Figures} figures=${[
      ["Conversations", formatCount(all.conversations), `${formatCount(all.requests)} requests`],
      ["Tokens saved", formatTokens(all.saved_tokens), `${formatShare(all.saved_tokens, all.received_tokens)} of what clients sent`],
      ["Money saved", formatUsd(all.saved_usd), `${formatUsd(all.spent_usd)} spent on requests`],
      ["Summary spend", formatUsd(all.summary_usd), `${formatCount(all.compactions)} compactions, ${formatCount(all.prunings)} prunings`],
      ["Cache breaks", formatCount(all.cache_breaks), "requests whose prefix changed"],
    ]} />
    ${tenants.length > 1 &&
    html`<details class="tenants">
      <summary>Totals per tenant (${tenants.length})</summary>
      <div class="scroll" role="region" aria-label="Totals per tenant" tabindex="0"><table>
        <thead><tr>
          <th scope="col">Tenant</th>
          ${COLUMNS.map(([name]) => html`<th scope="col" class="number">${name}</th>`)}
        </tr></thead>
        <tbody>${tenants.map((row) => html`<tr key=${row.tenant}>
          <th scope="row"><bdi>${row.tenant}</bdi></th>
          ${COLUMNS.map(([, show]) => html`<td class="number">${show(row)}</td>`)}
        </tr>`)}</tbody>
      </table></div>
    </details>`}
  </section>`;
}
