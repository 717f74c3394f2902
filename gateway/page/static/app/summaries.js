/** The summaries of a conversation: what each covers, why it was made, what it cost, its text and its versions. */

import { html, useRef, useState } from "../vendor/htm-preact.js";
import { formatCount, formatNumberOf, formatSeconds, formatTime, formatTokens, formatUsd } from "./format.js";
import { explainReason } from "./reasons.js";
import { SummaryEditor } from "./summary-editor.js";
import { Versions } from "./versions.js";
import { LongText } from "./text-block.js";
import { TextsRefused } from "./texts-refused.js";

const STATES = new Map([
  ["prepared", "prepared, not used yet"],
  ["in_use", "in use"],
  ["replaced", "no longer in use"],
]);

export function Summaries({ id, loaded, texts, onChange }) {
  const { data, problem } = loaded;
  const summaries = data?.summaries ?? [];
  const isRefused = summaries.length > 0 && texts?.allowed === false;
  return html`<section aria-labelledby="summaries-heading">
    <h2 id="summaries-heading">Summaries</h2>
    ${problem && html`<p class="error" role="alert">${problem.detail}</p>`}
    ${data && summaries.length === 0 &&
    html`<p class="empty">None so far. A summary is made as soon as old messages have cost as much as a compaction, at the latest when the conversation comes near its soft threshold; or by “Compact now”.</p>`}
    ${isRefused && html`<${TextsRefused} />`}
    ${summaries.map((summary) => html`<${Summary} key=${summary.key} id=${id} summary=${summary} onChange=${onChange} />`)}
  </section>`;
}

function Summary({ id, summary, onChange }) {
  const [mode, setMode] = useState("closed");
  const editButton = useRef(null);
  const headingId = `summary-${summary.key}`;
  const toggle = (wanted) => setMode(mode === wanted ? "closed" : wanted);
  // The form goes, so the focus returns to the button that opened it.
  const leave = () => {
    setMode("read");
    editButton.current?.focus();
  };
  const finish = () => {
    leave();
    onChange();
  };
  return html`<article class="summary-card ${summary.in_use ? "in-use" : ""}" aria-labelledby=${headingId}>
    <header>
      <h3 id=${headingId}>${summary.kind === "digest" ? "Digest" : "Summary"} of ${formatNumberOf(summary.covers, "message")}</h3>
      <span class="badge ${summary.in_use ? "in-use" : ""}">${STATES.get(summary.state) ?? summary.state}</span>
      ${summary.version > 1 && html`<span class="badge">version ${summary.version}</span>`}
      <span class="when"><time dateTime=${summary.created}>${formatTime(summary.created)}</time></span>
    </header>
    <${SummaryFacts} summary=${summary} />
    ${summary.text != null &&
    html`<div class="buttons">
      <button type="button" aria-expanded=${mode === "read"} onClick=${() => toggle("read")}>Read</button>
      ${summary.in_use && html`<button type="button" ref=${editButton} aria-expanded=${mode === "edit"} onClick=${() => toggle("edit")}>Edit</button>`}
      ${summary.versions?.length > 1 &&
      html`<button type="button" aria-expanded=${mode === "versions"} onClick=${() => toggle("versions")}>Versions (${summary.versions.length})</button>`}
    </div>`}
    ${mode === "read" &&
    html`<div class="summary-text">
      ${summary.framing && html`<p class="note">${summary.framing}</p>`}
      <${LongText} text=${summary.text} />
      ${summary.recalled && html`<h4>Pieces of the originals, sent behind the summary</h4><${LongText} text=${summary.recalled} />`}
    </div>`}
    ${mode === "edit" && html`<${SummaryEditor} id=${id} summary=${summary} onSaved=${finish} onCancel=${leave} />`}
    ${mode === "versions" && html`<${Versions} id=${id} summary=${summary} onRestored=${finish} />`}
  </article>`;
}

function SummaryFacts({ summary }) {
  const facts = [
    ["Why", explainReason(summary)],
    ["Size", `${formatTokens(summary.tokens)} tokens`],
    ["Saves per request", `${formatTokens(summary.saved_tokens)} tokens`],
    ["Cost", summary.kind === "digest" ? "nothing: made without a model" : describeCost(summary)],
    ["Took", `${formatSeconds(summary.seconds)} in ${formatNumberOf(summary.calls ?? 0, "call")}${describeWay(summary)}`],
    ["Model", summary.model],
  ];
  return html`<dl class="facts">
    ${facts.map(([name, value]) => value && html`<div key=${name}><dt>${name}</dt><dd><bdi>${value}</bdi></dd></div>`)}
  </dl>`;
}

function describeCost({ usd, prompt_tokens: prompt, cached_tokens: cached, output_tokens: output }) {
  const read = cached > 0 ? `, ${formatCount(cached)} of them cached` : "";
  return `${formatUsd(usd)} (${formatCount(prompt)} tokens in${read}, ${formatCount(output)} out)`;
}

/** A call that continues the conversation rides the provider's cache. */
function describeWay({ calls, riding_calls: riding }) {
  if (!riding) return "";
  return riding === calls ? ", riding the cache" : `, ${formatCount(riding)} of them riding the cache`;
}
