/** What was summarized, pruned, cut or failed, newest first. */

import { html } from "../vendor/htm-preact.js";
import { formatCount, formatSeconds, formatTime } from "./format.js";
import { explainReason } from "./reasons.js";

export function CompactionLog({ loaded }) {
  const entries = loaded.data?.log ?? [];
  return html`<section aria-labelledby="log-heading">
    <h2 id="log-heading">Compaction log</h2>
    ${loaded.problem && loaded.problem.status !== 404 && html`<p class="error" role="alert">${loaded.problem.detail}</p>`}
    ${entries.length === 0
      ? html`<p class="empty">Nothing was summarized, pruned, cut or failed so far.</p>`
      : html`<div class="scroll" role="region" aria-labelledby="log-heading" tabindex="0"><table>
          <thead><tr>
            <th scope="col">Time</th><th scope="col">What</th><th scope="col">Outcome</th><th scope="col">Why</th>
            <th scope="col" class="number">Before</th><th scope="col" class="number">After</th>
            <th scope="col" class="number">Messages</th><th scope="col" class="number">Duration</th><th scope="col">Model</th>
          </tr></thead>
          <tbody>${entries.map((entry, index) => html`<tr key=${`${entry.when} ${index}`}>
            <th scope="row">${formatTime(entry.when)}</th>
            <td>${entry.kind}</td><td>${entry.outcome}</td><td>${explainReason(entry)}</td>
            <td class="number">${formatCount(entry.pre_tokens)}</td><td class="number">${formatCount(entry.post_tokens)}</td>
            <td class="number">${formatCount(entry.messages)}</td><td class="number">${formatSeconds(entry.seconds)}</td>
            <td><bdi>${entry.model}</bdi></td>
          </tr>`)}</tbody>
        </table></div>`}
  </section>`;
}
