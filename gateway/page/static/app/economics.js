/** What conversations cost, with the gateway and without it, as figures. Values in, texts out. */

import { CHANGES } from "./changes.js";
import { formatCount, formatNumberOf, formatShare, formatSummaryUsd, formatTokens, formatUsd } from "./format.js";

/** Of a conversation, or of a sum of several. */
export function listCostFigures(row) {
  const found = row.economics ?? {};
  return [
    ["Cached", formatShare(found.cached_tokens, found.prompt_tokens), `of ${formatTokens(found.prompt_tokens)} prompt tokens`],
    ["Cache breaks", formatCount(row.cache_breaks), describeBreaks(found.breaks)],
    ["Spent", formatUsd(row.spent_usd), describeSummaries(row, found)],
    ["Without / with the gateway", `${formatUsd(found.without_usd)} / ${formatUsd(found.with_usd)}`, describeComparison(row, found)],
  ];
}

/** "2 compactions, 1 changed history": what changed the beginning of requests. */
export function describeBreaks(breaks) {
  const causes = Object.entries(CHANGES).filter(([name]) => breaks?.[name] > 0);
  if (!causes.length) return "";
  return causes.map(([name, words]) => {
    const count = breaks[name];
    return `${formatCount(count)} ${(count === 1 ? words.name : words.plural).toLowerCase()}`;
  }).join(", ");
}

function describeSummaries(row, { summary_calls: calls, riding_calls: riding }) {
  if (!calls) return "no summary calls";
  const way = riding > 0 ? `, ${formatCount(riding)} riding` : "";
  return `and ${formatSummaryUsd(row)} on ${formatNumberOf(calls, "summary call")}${way}`;
}

/** What was compared, and where an unshortened request would not have fit its window. */
function describeComparison(row, { compared_requests: requests, died }) {
  const same = requests > 0 ? `estimated for ${formatNumberOf(requests, "request")}` : "no price or no usage known";
  if (row.died_at) return `${same}; request ${formatCount(row.died_at)} would not fit`;
  return died > 0 ? `${same}; ${formatNumberOf(died, "conversation")} would have ended` : same;
}
