/** The overview's table. On a narrow screen each row is a card; the roles keep it a table for screen readers. */

import { Component, html } from "../vendor/htm-preact.js";
import { findSavedUsd } from "./economics.js";
import { namePurpose } from "./filters.js";
import { formatAgo, formatCount, formatExactTime, formatSignedUsd, formatSummaryUsd, formatTokens, nameConversation } from "./format.js";
import { useNow } from "./hooks.js";
import { renderConversation } from "./router.js";
import { WindowBar } from "./window-bar.js";

const CLOCK_MS = 5_000;
const COLUMNS = [
  ["Conversation", ""],
  ["Model", ""],
  ["Tokens in the window", ""],
  ["Compactions", "number"],
  ["Saved", "number"],
  ["Summary spend", "number"],
  ["Cache breaks", "number"],
  ["Last seen", "number"],
];

export function ConversationTable({ rows }) {
  const now = useNow(CLOCK_MS);
  return html`<table class="conversations" role="table" aria-label="Conversations">
    <thead role="rowgroup"><tr role="row">
      ${COLUMNS.map(([name, style]) => html`<th scope="col" role="columnheader" class=${style}>${name}</th>`)}
    </tr></thead>
    <tbody role="rowgroup">
      ${rows.map((row) => html`<${Row} key=${row.id} row=${row} seen=${formatAgo(row.last_seen, now)} />`)}
    </tbody>
  </table>`;
}

/** Drawn again only if its row, or how long ago that was, has changed. */
class Row extends Component {
  shouldComponentUpdate(next) {
    return next.row !== this.props.row || next.seen !== this.props.seen;
  }

  render({ row, seen }) {
    return html`<tr role="row">
      <th scope="row" role="rowheader" class="who">
        <a href=${renderConversation(row.id)}><bdi>${nameConversation(row)}</bdi></a>
        ${row.title && html`<span class="note session-name"><bdi>${row.title}</bdi></span>`}
        <span class="note"><bdi>${row.tenant}</bdi>${row.purpose !== "main" && ` · ${namePurpose(row.purpose)}`}
          ${row.parent && html` · part of <a href=${renderConversation(row.parent)}>${row.parent.slice(0, 8)}</a>`}</span>
      </th>
      <${Cell} name="Model"><bdi>${row.model ?? ""}</bdi><span class="note"><bdi>${row.upstream ?? ""}</bdi></span><//>
      <td role="cell" class="window"><${WindowBar} row=${row} /></td>
      <${Cell} name="Compactions" style="number">${formatCount(row.compactions)}
        ${row.prunings > 0 && html`<span class="note">${formatCount(row.prunings)} pruned</span>`}<//>
      <${Cell} name="Saved" style="number">${formatSignedUsd(findSavedUsd(row))}
        <span class="note">${formatTokens(row.saved_tokens)} tokens not sent</span><//>
      <${Cell} name="Summary spend" style="number">${formatSummaryUsd(row)}
        <span class="note">${formatTokens(row.summary_tokens)} tokens</span><//>
      <${Cell} name="Cache breaks" style="number">${formatCount(row.cache_breaks)}<//>
      <${Cell} name="Last seen" style="number"><time dateTime=${row.last_seen} title=${formatExactTime(row.last_seen)}>${seen}</time><//>
    </tr>`;
  }
}

/** Its name stands before the value where there are no columns. Screen readers have the column's header. */
function Cell({ name, style = "", children }) {
  return html`<td role="cell" class=${style}><span class="cell-name" aria-hidden="true">${name}</span>
    <span class="cell-value">${children}</span></td>`;
}
