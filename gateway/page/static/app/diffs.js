/** The files of a session. The diff of one is shown when it is opened. Diffs are hostile: only ever text nodes. */

import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { api } from "./api.js";
import { formatCount, formatNumberOf } from "./format.js";
import { useLoaded } from "./hooks.js";

const SHOWN_LINES = 300;
const LONGEST_LINE_CHARS = 2_000;
const KINDS = { created: "new", deleted: "deleted", moved: "moved" };

/** Lines that were added and removed, as words for screen readers. Nothing where no change could be counted. */
export function LineCounts({ of: { additions, deletions, unknown } }) {
  if (unknown > 0 && !additions && !deletions) return null;
  return html`<span class="line-counts">
    <span class="added"><span aria-hidden="true">+</span>${formatCount(additions)}<span class="hidden"> lines added</span></span>
    <span class="removed"><span aria-hidden="true">−</span>${formatCount(deletions)}<span class="hidden"> lines removed</span></span>
  </span>`;
}

export function SessionFiles({ id, files }) {
  return html`<ul class="files" aria-label="Files">
    ${files.map((file) => html`<${File} key=${file.path} id=${id} file=${file} />`)}
  </ul>`;
}

function File({ id, file }) {
  const [isOpen, setOpen] = useState(false);
  return html`<li><details onToggle=${(event) => setOpen(event.target.open)}>
    <summary><code dir="auto">${file.path}</code> <${LineCounts} of=${file} />
      ${KINDS[file.kind] && html` <span class="badge">${KINDS[file.kind]}</span>`}
      ${file.moved_from && html` <span class="muted">from <code dir="auto">${file.moved_from}</code></span>`}
      ${file.unknown > 0 && html` <span class="muted">${formatNumberOf(file.unknown, "change")} not counted</span>`}</summary>
    ${isOpen && html`<${Diff} id=${id} path=${file.path} />`}
  </details></li>`;
}

function Diff({ id, path }) {
  const { data, problem } = useLoaded((signal) => api.diff(id, signal), [id]);
  if (problem) return html`<p class="error" role="alert">${problem.detail}</p>`;
  if (!data) return html`<p class="muted">Loading …</p>`;
  const found = data.files.find((each) => each.file === path);
  if (!found) return html`<p class="empty">The diff of this file is not kept.</p>`;
  return html`<${DiffText} name=${path} text=${found.diff} />`;
}

function DiffText({ name, text }) {
  const [shown, setShown] = useState(SHOWN_LINES);
  const lines = useMemo(() => readLines(text), [text]);
  return html`<div class="diff" role="region" aria-label=${`Diff of ${name}`} tabindex="0">
      ${lines.slice(0, shown).map((line, index) => html`<div key=${index} class=${line.kind} dir="auto">${line.text}</div>`)}
    </div>
    ${shown < lines.length &&
    html`<p class="more"><button type="button" onClick=${() => setShown(shown + SHOWN_LINES)}>Show more of this diff</button>
      <span class="muted">${formatCount(Math.min(shown, lines.length))} of ${formatCount(lines.length)} lines</span></p>`}`;
}

/** Lines of a unified diff, each with what it is: added, removed, place or same. A very long one is cut. */
export function readLines(text) {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines.map((line, index) => {
    const isHeader = index < 2 && /^(---|\+\+\+) /.test(line);
    const kind = isHeader || line.startsWith("@@") ? "place" : { "+": "added", "-": "removed" }[line[0]] ?? "same";
    const isLong = line.length > LONGEST_LINE_CHARS;
    return { kind, text: isLong ? `${line.slice(0, LONGEST_LINE_CHARS)}…` : line || " " };
  });
}
