/**
 * One conversation: what it used, saved and cost, its requests as a chart, what it worked on, its summaries, and what
 * was received beside what was sent.
 *
 * Numbers are live. Texts are not: each view of them is logged by the gateway, so the reader asks for newer ones.
 */

import { html, useEffect } from "../vendor/htm-preact.js";
import { Actions } from "./actions.js";
import { announce } from "./announce.js";
import { api } from "./api.js";
import { Facts } from "./facts.js";
import { formatTokens, nameConversation } from "./format.js";
import { useConnection, useEvents, useHeading, useLoaded, useThrottled } from "./hooks.js";
import { CompactionLog } from "./log.js";
import { Messages } from "./messages.js";
import { Requests } from "./requests.js";
import { renderOverview } from "./router.js";
import { Search } from "./search.js";
import { Session } from "./session.js";
import { Summaries } from "./summaries.js";

const NUMBERS_INTERVAL_MS = 2_000;
// After these the summaries and the log have changed.
const CHANGES = new Set(["session.compacted", "compaction_failed", "pruned"]);

export function Conversation({ id, isFirst }) {
  const heading = useHeading(isFirst);
  const detail = useLoaded((signal) => api.conversation(id, signal), [id]);
  const requests = useLoaded((signal) => api.requests(id, signal), [id]);
  const summaries = useLoaded((signal) => api.summaries(id, signal), [id]);
  const log = useLoaded((signal) => api.log(id, signal), [id]);
  const reloadNumbers = useThrottled(() => {
    detail.reload();
    requests.reload();
    // A prepared summary comes into use with a request, which no other event tells.
    if (summaries.data?.summaries.some((each) => each.state === "prepared")) summaries.reload();
  }, NUMBERS_INTERVAL_MS);
  const reloadAll = () => [detail, requests, summaries, log].forEach((loaded) => loaded.reload());
  useConnection(reloadAll);
  useEvents(({ name, data }) => {
    if (name === "activity" && data.conversations.some((row) => row.id === id)) reloadNumbers();
    if (CHANGES.has(name) && (data.session_id ?? data.sessionID) === id) {
      reloadAll();
      announce(describeEvent(name, data));
    }
  });
  const name = detail.data ? nameConversation(detail.data) : id.slice(0, 8);
  useEffect(() => {
    document.title = `${name} · Refold`;
  }, [name]);

  return html`
    <nav aria-label="Breadcrumb" class="breadcrumb"><a href=${renderOverview()}>Conversations</a></nav>
    <div class="title-row">
      <h1 ref=${heading} tabindex="-1"><bdi>${name}</bdi></h1>
      ${detail.data && html`<${Actions} row=${detail.data} />`}
    </div>
    <${Found} detail=${detail}>
      <${Facts} row=${detail.data} />
      <${Requests} loaded=${requests} />
      <${Session} id=${id} row=${detail.data} />
      <${Summaries} id=${id} loaded=${summaries} texts=${detail.data?.texts} onChange=${summaries.reload} />
      <${Messages} id=${id} row=${detail.data} />
      <${Search} id=${id} row=${detail.data} />
      <${CompactionLog} loaded=${log} />
    <//>
  `;
}

function Found({ detail, children }) {
  if (detail.data) return children;
  if (!detail.problem) return html`<p class="muted">Loading …</p>`;
  if (detail.problem.status === 404) {
    return html`<p class="empty">The gateway does not know this conversation. It may have been deleted.
      <a href=${renderOverview()}> All conversations</a></p>`;
  }
  return html`<p class="error" role="alert">${detail.problem.detail}</p>`;
}

function describeEvent(name, data) {
  if (name === "session.compacted") {
    return `Compacted: ${formatTokens(data.pre_tokens)} tokens became ${formatTokens(data.post_tokens)}.`;
  }
  if (name === "pruned") return `Old tool results were cleared: ${formatTokens(data.saved_tokens)} tokens saved.`;
  return `The compaction failed: ${data.reason}.`;
}
