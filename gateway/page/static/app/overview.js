/**
 * The overview: all conversations, newest first, with filters, and the totals of each tenant.
 *
 * It is live. A row changes where it is, and only conversations that are new come in at the top, so that the table
 * does not jump under the reader's hand.
 */

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { announce } from "./announce.js";
import { api } from "./api.js";
import { ConversationTable } from "./conversation-table.js";
import { Filters } from "./filters.js";
import { FirstVisit } from "./first-visit.js";
import { formatNumberOf } from "./format.js";
import { useConnection, useEvents, useHeading, useLoaded, useThrottled } from "./hooks.js";
import { mergeNewest, mergeRows } from "./rows.js";
import { Totals } from "./totals.js";

const PAGE_ROWS = 50;
// New rows are looked for, and totals asked for, at most this often.
const ROWS_INTERVAL_MS = 1_000;
const TOTALS_INTERVAL_MS = 5_000;

export function Overview({ query, isFirst }) {
  const list = useList(query);
  const totals = useLoaded((signal) => api.totals(signal), []);
  const reloadTotals = useThrottled(totals.reload, TOTALS_INTERVAL_MS);
  const heading = useHeading(isFirst);
  useEvents(({ name }) => name === "activity" && reloadTotals());
  useConnection(() => {
    list.reload();
    totals.reload();
  });
  useEffect(() => {
    document.title = "Conversations · Refold";
  }, []);
  const isFiltered = Object.keys(query).length > 0;
  const { tenants = [], models = [] } = totals.data ?? {};
  const isEmpty = list.data?.conversations.length === 0 && !list.isStale && !list.problem;
  if (isEmpty && !isFiltered) return html`<${FirstVisit} heading=${heading} />`;
  return html`
    <h1 ref=${heading} tabindex="-1">Conversations</h1>
    ${tenants.length > 0 && html`<${Totals} tenants=${tenants} models=${models} />`}
    <${Filters} query=${query} tenants=${tenants} rows=${list.data?.conversations ?? []} />
    <${List} list=${list} />
  `;
}

function List({ list }) {
  const { data, problem } = list;
  return html`
    ${problem && problem.status !== 401 && html`<p class="error" role="alert">${problem.detail}</p>`}
    ${!data && !problem && html`<p class="muted">Loading …</p>`}
    ${data && data.conversations.length === 0 && html`<p class="empty">No conversation matches these filters.</p>`}
    ${data && data.conversations.length > 0 && html`<${ConversationTable} rows=${data.conversations} />`}
    ${data?.next &&
    html`<p class="more"><button type="button" disabled=${list.isLoadingMore} onClick=${list.loadMore}>
      Show more conversations
    </button></p>`}
  `;
}

/** The rows that match the query, kept up to date by events, and more of them on demand. */
function useList(query) {
  const filter = { ...query, limit: PAGE_ROWS };
  const list = useLoaded((signal) => api.conversations(filter, signal), [JSON.stringify(query)]);
  const [isLoadingMore, setLoadingMore] = useState(false);
  const lookForNew = useThrottled(async () => {
    // What is being loaded may be older than the event.
    if (!list.data) return list.reload();
    try {
      const newest = await api.conversations(filter);
      list.update((data) => ({ ...data, conversations: mergeNewest(data.conversations, newest.conversations) }));
    } catch {
      // The connection's state is shown elsewhere, and the next event asks again.
    }
  }, ROWS_INTERVAL_MS);

  useEvents(({ name, data }) => {
    if (name !== "activity") return;
    if (!list.data) return lookForNew();
    const { rows, hasUnknown } = mergeRows(list.data.conversations, data.conversations);
    list.update((before) => ({ ...before, conversations: rows }));
    if (hasUnknown) lookForNew();
  });

  const loadMore = async () => {
    setLoadingMore(true);
    try {
      const more = await api.conversations({ ...filter, cursor: list.data.next });
      const known = new Set(list.data.conversations.map((row) => row.id));
      const fresh = more.conversations.filter((row) => !known.has(row.id));
      list.update((data) => ({ conversations: [...data.conversations, ...fresh], next: more.next }));
      announce(`${formatNumberOf(fresh.length, "more conversation")} shown.`);
    } catch (problem) {
      announce(problem.detail);
    } finally {
      setLoadingMore(false);
    }
  };
  return { ...list, loadMore, isLoadingMore };
}
