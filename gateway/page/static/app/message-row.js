/** One row of the two arrays: a message with what became of it, closed at first. */

import { html, useState } from "../vendor/htm-preact.js";
import { sumTokens } from "./alignment.js";
import { Contained } from "./contained.js";
import { formatNumberOf, formatTokens } from "./format.js";
import { asText, previewMessage } from "./message-text.js";
import { MessageText } from "./text-block.js";

// What a message that is sent is, in words. A colour goes with each, and never alone.
const KINDS = {
  message: "message",
  question: "question repeated",
  summary: "summary",
  resume: "resume text",
  cleared: "cleared",
  shortened: "shortened",
  recalled: "recalled",
};
const FATES = { folded: "folded", gone: "dropped by the client" };
// Of a group of folded messages, drawn at once.
const GROUP_ROWS = 50;

export function Row({ row }) {
  if (row.kind === "skipped") {
    return html`<li class="pair skipped"><p class="muted">${formatNumberOf(row.count, "message")} sent as received</p></li>`;
  }
  if (row.kind === "same") return html`<${SameRow} row=${row} />`;
  if (row.kind === "reduced") return html`<${ReducedRow} row=${row} />`;
  return html`<${ReplacedRow} row=${row} />`;
}

/** Its text is the same on both sides, and is shown once. */
function SameRow({ row: { received, sent } }) {
  const [isOpen, setOpen] = useState(false);
  return html`<li class="pair">
    <div class="side received"><${Line} side="Received" entry=${received} isOpen=${isOpen} onToggle=${() => setOpen(!isOpen)} /></div>
    <div class="side same"><p class="line plain-line">
      <span class="position">${sent.place}</span><span class="role">${asText(sent.role)}</span>
      <span class="preview"><span aria-hidden="true">= </span>as received</span>
      <span class="tokens">${formatTokens(sent.tokens)}<span class="hidden"> tokens</span></span>
    </p></div>
    ${isOpen && html`<div class="whole"><${MessageText} message=${received.message} /></div>`}
  </li>`;
}

/** A placeholder beside its original. */
function ReducedRow({ row }) {
  const [isOpen, setOpen] = useState(false);
  const toggle = () => setOpen(!isOpen);
  return html`<li class="pair ${row.sent.kind}">
    <div class="side received">
      <${Line} side="Received" entry=${row.received} badge="original" isOpen=${isOpen} onToggle=${toggle} />
      ${isOpen && html`<${MessageText} message=${row.received.message} />`}
    </div>
    <div class="side sent">
      <${Line} side="Sent" entry=${row.sent} badge=${KINDS[row.sent.kind]} style=${row.sent.kind} isOpen=${isOpen} onToggle=${toggle} />
      ${isOpen && html`<${MessageText} message=${row.sent.message} />`}
    </div>
  </li>`;
}

/** Messages that are not sent, beside what stands for them. */
function ReplacedRow({ row }) {
  return html`<li class="pair replaced">
    <div class="side received">${row.received.length > 0
      ? html`<${Group} entries=${row.received} />`
      : html`<p class="muted nothing">nothing: added by the gateway</p>`}</div>
    <div class="side sent">${row.sent.length > 0
      ? row.sent.map((entry, index) => html`<${Contained} key=${index} of="div"><${Inserted} entry=${entry} /><//>`)
      : html`<p class="muted nothing">not sent</p>`}</div>
  </li>`;
}

function Group({ entries }) {
  const [isOpen, setOpen] = useState(false);
  const [shown, setShown] = useState(GROUP_ROWS);
  const [first, last] = [entries[0], entries[entries.length - 1]];
  const fates = [...new Set(entries.map(({ fate }) => FATES[fate] ?? fate))].join(", ");
  return html`
    <button type="button" class="line group" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>
      <span class="hidden side-name">Received </span>
      <span class="position">${first === last ? first.place : `${first.place}–${last.place}`}</span>
      <span class="badge folded">${fates}</span>
      <span class="preview">${formatNumberOf(entries.length, "message")}</span>
      <span class="tokens">${formatTokens(sumTokens(entries))}</span>
    </button>
    ${isOpen && html`<ol class="group-list">
      ${entries.slice(0, shown).map((entry) => html`<li key=${entry.place}><${Contained} of="div"><${Original} entry=${entry} /><//></li>`)}
    </ol>`}
    ${isOpen && shown < entries.length &&
    html`<p class="more"><button type="button" onClick=${() => setShown(shown + GROUP_ROWS)}>Show more of these messages</button></p>`}
  `;
}

function Original({ entry }) {
  const [isOpen, setOpen] = useState(false);
  return html`
    <${Line} side="Received" entry=${entry} badge=${FATES[entry.fate] ?? entry.fate} style="folded" isOpen=${isOpen}
      onToggle=${() => setOpen(!isOpen)} />
    ${isOpen && html`<${MessageText} message=${entry.message} />`}
  `;
}

/** What the gateway sends on its own: a summary, a repeated question, a resume text. */
function Inserted({ entry }) {
  const [isOpen, setOpen] = useState(false);
  return html`
    <${Line} side="Sent" entry=${entry} badge=${KINDS[entry.kind] ?? entry.kind} style=${entry.kind} isOpen=${isOpen}
      onToggle=${() => setOpen(!isOpen)} />
    ${isOpen && html`<${MessageText} message=${entry.message} />`}
  `;
}

/** The button that opens a message: position, role, what became of it, its beginning, its size. */
function Line({ side, entry, badge, style = "", isOpen, onToggle }) {
  return html`<button type="button" class="line" aria-expanded=${isOpen} onClick=${onToggle}>
    <span class="hidden side-name">${side} </span>
    <span class="position">${entry.place}</span>
    <span class="role">${asText(entry.role)}</span>
    ${badge && html`<span class="badge ${style}">${badge}</span>`}
    <span class="preview"><bdi>${entry.message == null ? "(not in memory)" : previewMessage(entry.message)}</bdi></span>
    <span class="tokens">${formatTokens(entry.tokens)}<span class="hidden"> tokens</span></span>
  </button>`;
}
