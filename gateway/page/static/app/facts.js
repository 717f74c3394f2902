/** Who a conversation belongs to, and what it used, saved and cost. */

import { html } from "../vendor/htm-preact.js";
import { listCostFigures, makeSavedFigure } from "./economics.js";
import { Figures } from "./figures.js";
import { namePurpose } from "./filters.js";
import { formatAgo, formatCount, formatTokens } from "./format.js";
import { useNow } from "./hooks.js";
import { renderConversation } from "./router.js";
import { WindowBar } from "./window-bar.js";

const CLOCK_MS = 5_000;

export function Facts({ row }) {
  const now = useNow(CLOCK_MS);
  const facts = [
    ["Tenant", row.tenant],
    ["Model", row.model],
    ["Upstream", row.upstream],
    ["Purpose", row.purpose && namePurpose(row.purpose)],
    ["Id", row.id],
    ["Last plan", row.plan === "cut" ? "cut: a message that the upstream refused as too long leaves without its middle" : row.plan],
    ["Messages", row.messages == null ? null : formatCount(row.messages)],
    ["First seen", formatAgo(row.first_seen, now)],
    ["Last seen", formatAgo(row.last_seen, now)],
  ];
  return html`
    <dl class="facts">
      ${facts.map(([name, value]) => value && html`<div key=${name}><dt>${name}</dt><dd><bdi>${value}</bdi></dd></div>`)}
      ${row.parent && html`<div><dt>Part of</dt><dd><a href=${renderConversation(row.parent)}>${row.parent.slice(0, 8)}</a></dd></div>`}
    </dl>
    <section aria-labelledby="figures-heading">
      <h2 id="figures-heading" class="hidden">Figures</h2>
      <div class="window-wide"><span class="window-name">Newest request</span><${WindowBar} row=${row} /></div>
      <${Figures} figures=${[
        makeSavedFigure(row),
        ["Requests", formatCount(row.requests), `${formatCount(row.compactions)} compactions, ${formatCount(row.prunings)} prunings`],
        ["Tokens not sent", formatTokens(row.saved_tokens), row.pivot ? `${formatTokens(row.pivot.saved_tokens)} per request now` : "no summary in use"],
        ...listCostFigures(row),
      ]} />
    </section>
  `;
}
