/**
 * Numbers, money and times as text. Values in, text out: nothing here touches the page.
 *
 * A value that the gateway does not know is null and is written as an en dash.
 */

export const UNKNOWN = "–";

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DATE_AND_CLOCK = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** A count with separators: 12,345. */
export function formatCount(value) {
  return value == null ? UNKNOWN : WHOLE.format(value);
}

/** Tokens in three digits: 950, 12.3k, 1.25M. */
export function formatTokens(value) {
  if (value == null) return UNKNOWN;
  const size = Math.abs(value);
  if (size < 1000) return WHOLE.format(value);
  if (size < 999_500) return `${shorten(value / 1000)}k`;
  return `${shorten(value / 1_000_000)}M`;
}

function shorten(value) {
  const size = Math.abs(value);
  return value.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0).replace(/\.0+$|(\.\d*[1-9])0+$/, "$1");
}

/** US dollars: cents with two digits, less than a cent with enough of them to see something. */
export function formatUsd(value) {
  if (value == null) return UNKNOWN;
  if (value === 0) return "$0";
  const sign = value < 0 ? "−" : "";
  const size = Math.abs(value);
  if (size < 0.0001) return `${sign}<$0.0001`;
  if (size < 0.01) return `${sign}$${size.toFixed(4)}`;
  if (size < 1000) return `${sign}$${size.toFixed(2)}`;
  return `${sign}$${WHOLE.format(size)}`;
}

/** What was saved, or spent beyond, with its sign: +$1.20, −$0.05. */
export function formatSignedUsd(value) {
  return value > 0 ? `+${formatUsd(value)}` : formatUsd(value);
}

/** What summaries cost: nothing where none was made, also where no price is known. */
export function formatSummaryUsd({ summary_tokens: tokens, summary_usd: usd }) {
  return formatUsd(tokens === 0 ? 0 : usd);
}

export function formatShare(part, whole) {
  if (!whole || part == null) return UNKNOWN;
  const percent = (100 * part) / whole;
  return percent > 0 && percent < 1 ? "<1 %" : `${Math.round(percent)} %`;
}

export function formatSeconds(seconds) {
  if (seconds == null) return UNKNOWN;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return `${Math.round(seconds / 60)} min`;
}

/** How long ago, as of `now` (milliseconds since the epoch). */
export function formatAgo(iso, now) {
  if (!iso) return UNKNOWN;
  const age = Math.max(0, now - Date.parse(iso));
  if (age < 5 * SECOND) return "now";
  if (age < MINUTE) return `${Math.floor(age / SECOND)} s ago`;
  if (age < HOUR) return `${Math.floor(age / MINUTE)} min ago`;
  if (age < DAY) return `${Math.floor(age / HOUR)} h ago`;
  return `${Math.floor(age / DAY)} d ago`;
}

/** The time of day, and the date unless it is today. */
export function formatTime(iso) {
  if (!iso) return UNKNOWN;
  const date = new Date(iso);
  const isToday = date.toDateString() === new Date().toDateString();
  return (isToday ? CLOCK : DATE_AND_CLOCK).format(date);
}

export function formatExactTime(iso) {
  return iso ? DATE_AND_CLOCK.format(new Date(iso)) : UNKNOWN;
}

/** "1 request", "2 requests". */
export function formatNumberOf(count, noun) {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** What people call a conversation: the client's label, or the beginning of its id. */
export function nameConversation(row) {
  return row.session || row.id.slice(0, 8);
}
