/** What conversations cost, with the gateway and without it, as figures. Values in, texts out. */

import { CHANGES } from "./changes.js";
import { formatCount, formatNumberOf, formatShare, formatSignedUsd, formatSummaryUsd, formatTokens, formatUsd } from "./format.js";

/** What was saved up to where it would have ended without the gateway; negative if more was spent. Null if not known. */
export function findSavedUsd({ economics }) {
  const { with_usd: withUsd, without_usd: withoutUsd } = economics ?? {};
  return withUsd == null || withoutUsd == null ? null : withoutUsd - withUsd;
}

/** The figure that leads. */
export function makeSavedFigure(row) {
  const saved = findSavedUsd(row);
  return ["Saved", formatSignedUsd(saved), describeComparison(row, row.economics ?? {}, saved)];
}

/** Of a conversation, or of a sum of several. */
export function listCostFigures(row) {
  const found = row.economics ?? {};
  return [
    ["Cached", formatShare(found.cached_tokens, found.prompt_tokens), `of ${formatTokens(found.prompt_tokens)} prompt tokens`],
    ["Cache breaks", formatCount(row.cache_breaks), describeBreaks(found.breaks)],
    ["Unused summaries", formatCount(found.unused_summaries), `of ${formatNumberOf(row.compactions, "compaction")}: prepared, or made in vain`],
    ["Spent", formatUsd(row.spent_usd), describeSummaries(row, found)],
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
function describeComparison(row, found, saved) {
  if (saved == null) return "no price or no usage known";
  const costs = `${formatUsd(found.without_usd)} without the gateway, ${formatUsd(found.with_usd)} with it`;
  const same = `${costs}, estimated for ${formatNumberOf(found.compared_requests, "request")}`;
  if (row.died_at) return `${same}; request ${formatCount(row.died_at)} would not fit`;
  return found.died > 0 ? `${same}; ${formatNumberOf(found.died, "conversation")} would have ended` : same;
}
