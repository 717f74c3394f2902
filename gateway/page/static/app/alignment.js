/**
 * The array as received beside the array as sent, in rows. Values in, values out.
 *
 * A message has its position in the conversation. Those of the leading block have none, and are sent as received.
 * For the reader, each has its `place` in its own array.
 *
 * A row is one of
 *   {kind: "same", received, sent}        sent as it was received
 *   {kind: "reduced", received, sent}     sent cleared or shortened
 *   {kind: "replaced", received[], sent[]}  messages that are not sent, and what is sent in their place
 */

const REDUCED = new Set(["cleared", "shortened", "recalled"]);

const withPlace = (entry, place) => ({ ...entry, place });

/** Both arrays as the API gives them, in order. */
export function alignArrays(receivedEntries, sentEntries) {
  const received = receivedEntries.map(withPlace);
  const rows = [];
  let next = 0;
  let inserted = [];
  const flush = (end) => {
    const left = received.slice(next, end);
    if (left.length || inserted.length) rows.push({ kind: "replaced", received: left, sent: inserted });
    next = Math.max(next, end);
    inserted = [];
  };
  const places = new Map(received.filter(({ position }) => position != null).map(({ position, place }) => [position, place]));
  const isLeading = ({ position, kind }) => position == null && kind === "message" && received[next]?.position == null;
  for (const entry of sentEntries.map(withPlace)) {
    const place = isLeading(entry) ? next : places.get(entry.position);
    // What has no place, or stands before what was shown already, is only sent.
    if (place === undefined || place < next) {
      inserted.push(entry);
      continue;
    }
    flush(place);
    rows.push({ kind: REDUCED.has(entry.kind) ? "reduced" : "same", received: received[place], sent: entry });
    next = place + 1;
  }
  flush(received.length);
  return rows;
}

/** The rows that differ from what was received, each run of equal ones as `{kind: "skipped", count}`. */
export function keepChanges(rows) {
  const kept = [];
  for (const row of rows) {
    const last = kept[kept.length - 1];
    if (row.kind !== "same") kept.push(row);
    else if (last?.kind === "skipped") last.count += 1;
    else kept.push({ kind: "skipped", count: 1 });
  }
  return kept;
}

export const sumTokens = (entries) => entries.reduce((sum, { tokens }) => sum + (tokens ?? 0), 0);

/** How many messages met which fate: `{sent: 3, folded: 25}`. */
export function countFates(received) {
  const counts = {};
  for (const { fate } of received) counts[fate] = (counts[fate] ?? 0) + 1;
  return counts;
}
