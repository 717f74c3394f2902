/** What all conversations together saved and cost: a line of figures, a table with a row for each tenant, and one with a row for each model. */

import { html } from "../vendor/htm-preact.js";
import { findSavedUsd, listCostFigures, makeSavedFigure } from "./economics.js";
import { Figures } from "./figures.js";
import { formatCount, formatShare, formatSignedUsd, formatTokens, formatUsd } from "./format.js";
import { sumTotals } from "./rows.js";

const COLUMNS = [
  ["Saved", (row) => formatSignedUsd(findSavedUsd(row))],
  ["Conversations", (row) => formatCount(row.conversations)],
  ["Requests", (row) => formatCount(row.requests)],
  ["Received tokens", (row) => formatTokens(row.received_tokens)],
  ["Sent tokens", (row) => formatTokens(row.sent_tokens)],
  ["Tokens not sent", (row) => formatTokens(row.saved_tokens)],
  ["Cached", (row) => formatShare(row.economics.cached_tokens, row.economics.prompt_tokens)],
  ["Spent", (row) => formatUsd(row.spent_usd)],
  ["Summaries", (row) => formatUsd(row.summary_usd)],
  ["Without gateway", (row) => formatUsd(row.economics.without_usd)],
  ["With it", (row) => formatUsd(row.economics.with_usd)],
  ["Would have ended", (row) => formatCount(row.economics.died)],
  ["Compactions", (row) => formatCount(row.compactions)],
  ["Prunings", (row) => formatCount(row.prunings)],
  ["Cache breaks", (row) => formatCount(row.cache_breaks)],
];

export function Totals({ tenants, models }) {
  const all = sumTotals(tenants);
  return html`<section class="totals" aria-labelledby="totals-heading">
    <h2 id="totals-heading" class="hidden">Totals</h2>
    <${Figures} figures=${[
      makeSavedFigure(all),
      ["Conversations", formatCount(all.conversations), `${formatCount(all.requests)} requests`],
      ["Tokens not sent", formatTokens(all.saved_tokens), `${formatShare(all.saved_tokens, all.received_tokens)} of what clients sent`],
      ...listCostFigures(all),
    ]} />
    ${tenants.length > 1 && html`<${Table} of="tenant" rows=${tenants} />`}
    ${models.length > 1 && html`<${Table} of="model" rows=${models} />`}
  </section>`;
}

/** of: the field that names each row; null stands for all rows that are not listed. */
function Table({ of: field, rows }) {
  const title = `Totals per ${field}`;
  return html`<details class="sums">
    <summary>${title} (${rows.length})</summary>
    <div class="scroll" role="region" aria-label=${title} tabindex="0"><table>
      <thead><tr>
        <th scope="col">${field === "tenant" ? "Tenant" : "Model"}</th>
        ${COLUMNS.map(([name]) => html`<th scope="col" class="number">${name}</th>`)}
      </tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row[field] ?? ""}>
        <th scope="row">${row[field] == null ? "all others" : html`<bdi>${row[field]}</bdi>`}</th>
        ${COLUMNS.map(([, show]) => html`<td class="number">${show(row)}</td>`)}
      </tr>`)}</tbody>
    </table></div>
  </details>`;
}
