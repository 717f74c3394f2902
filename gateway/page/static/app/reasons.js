/** Why a summary was made, or an entry of the compaction log written. Values in, text out. */

// By the gateway's own names, which logs, metrics and the admin API have.
const REASONS = new Map([
  ["soft_threshold", "soft threshold passed"],
  ["cost", "old messages had cost as much as a compaction"],
  ["hard_threshold", "hard threshold passed, so the request waited"],
  ["refused", "the upstream refused the request as too long"],
  ["manual", "asked for by hand"],
  ["client_trims", "the client drops old messages, so no summary would be used twice"],
]);

/** A name that this page does not know, as of a newer gateway, is shown as it is. */
export function explainReason({ kind, reason }) {
  if (kind === "prune") return "old tool results took too much room";
  return REASONS.get(reason) ?? reason ?? "taken over from an earlier part of the conversation";
}
