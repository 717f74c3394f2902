/** Why what is sent no longer begins like the request before: the marks of the chart and their words. */

export const CHANGES = {
  compaction: { name: "Compaction", plural: "Compactions", sign: "C", colour: "--summary", note: "old turns became a summary" },
  pruning: { name: "Pruning", plural: "Prunings", sign: "P", colour: "--pruned", note: "old tool results were cleared" },
  edit: { name: "Edited summary", plural: "Edited summaries", sign: "E", colour: "--accent", note: "a summary was edited or restored" },
  history: { name: "Changed history", plural: "Changed histories", sign: "H", colour: "--muted", note: "the client changed earlier messages" },
};
