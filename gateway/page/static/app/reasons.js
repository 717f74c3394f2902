/** Why a summary was made, or an entry of the compaction log written. Values in, text out. */

// By the gateway's own names, which logs, metrics and the admin API have.
const REASONS = new Map([
  ["overflow", "soft threshold passed"],
  ["economy", "old messages had cost as much as a compaction"],
  ["hard line", "hard threshold passed, so the request waited"],
  ["digest", "no summary was ready in time"],
  ["manual", "asked for by hand"],
  ["edit", "edited by hand"],
  ["prune", "old tool results took too much room"],
  ["refused", "the upstream refused it as too long"],
  ["inherited", "taken over from an earlier part of the conversation"],
]);

/** A name that this page does not know, as of a newer gateway, is shown as it is. */
export function explainReason({ trigger, reason }) {
  return REASONS.get(reason) ?? reason ?? trigger ?? "";
}
