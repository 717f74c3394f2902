/** What a conversation worked on: files with their diffs, open to-dos, commands, and what the user asked. */

import { html, useState } from "../vendor/htm-preact.js";
import { api } from "./api.js";
import { LineCounts, SessionFiles } from "./diffs.js";
import { formatNumberOf, formatTime } from "./format.js";
import { useLoaded } from "./hooks.js";
import { LongText } from "./text-block.js";

const SHOWN_COMMANDS = 20;

/** Loaded once, and when the reader asks for newer work: each view of texts is logged by the gateway. */
export function Session({ id, row }) {
  const isAllowed = row.texts?.allowed !== false;
  const loaded = useLoaded(async (signal) => (isAllowed ? api.session(id, signal) : null), [id, isAllowed]);
  const { data, problem } = loaded;
  const isOutdated = data?.updated && row.last_seen && Date.parse(row.last_seen) - Date.parse(data.updated) > 2_000;
  return html`<section aria-labelledby="session-heading">
    <div class="title-row">
      <h2 id="session-heading">Session</h2>
      ${data?.updated && html`<p class="muted">Noted ${formatTime(data.updated)}
        ${isOutdated && html` <button type="button" onClick=${loaded.reload}>Look for newer work</button>`}</p>`}
    </div>
    ${!isAllowed && html`<p class="muted">Titles, files, commands and diffs are texts, which are not shown.</p>`}
    ${problem && html`<p class="error" role="alert">${problem.detail}</p>`}
    ${isAllowed && !data && !problem && html`<p class="muted">Loading …</p>`}
    ${data && html`<${Work} key=${data.updated} id=${id} data=${data} />`}
  </section>`;
}

function Work({ id, data }) {
  if (!data.updated) return html`<p class="empty">Nothing is kept of what this session worked on.</p>`;
  const isEmpty = !data.files.length && !data.commands.length && !data.todos.length;
  return html`
    ${data.title && html`<p class="session-title"><bdi>${data.title}</bdi></p>`}
    ${isEmpty && html`<p class="empty">No files were changed and no commands were run so far.</p>`}
    ${data.files.length > 0 && html`
      <h3>${formatNumberOf(data.files.length + data.left_files, "file")} <${LineCounts} of=${{ ...data, unknown: data.files.filter((file) => file.unknown).length }} /></h3>
      <${SessionFiles} id=${id} files=${data.files} />
      ${data.left_files > 0 && html`<p class="muted">${formatNumberOf(data.left_files, "earlier file")} not listed.</p>`}`}
    ${data.todos.length > 0 && html`<h3>Open to-dos</h3>
      <ul class="todos">${data.todos.map((todo, index) => html`<li key=${index}><bdi>${todo.text}</bdi>
        ${todo.in_progress && html` <span class="badge">in progress</span>`}</li>`)}</ul>`}
    ${data.commands.length > 0 && html`<${Commands} commands=${data.commands} left=${data.left_commands} />`}
    ${data.messages.length > 1 && html`<details class="asked"><summary>What the user asked</summary>
      <ol>${data.messages.map(({ message, title }) => html`<li key=${message}><bdi>${title}</bdi></li>`)}</ol></details>`}
    ${data.summary && html`<details class="asked"><summary>Last ${data.summary.kind}, ${formatTime(data.summary.created)}</summary>
      <${LongText} text=${data.summary.text} /></details>`}
  `;
}

/** The newest first. */
function Commands({ commands, left }) {
  const [shown, setShown] = useState(SHOWN_COMMANDS);
  const newest = commands.slice(-shown).reverse();
  return html`<h3>${formatNumberOf(commands.length + left, "command")}</h3>
    <ol class="commands" reversed aria-label="Commands, newest first">
      ${newest.map(({ command, exit_code: code }, index) => html`<li key=${index}>
        <code dir="auto">${command}</code> ${code != null && html`<span class=${code === 0 ? "exit" : "exit failed"}>exit ${code}</span>`}
      </li>`)}
    </ol>
    ${shown < commands.length &&
    html`<p class="more"><button type="button" onClick=${() => setShown(shown + SHOWN_COMMANDS)}>Show older commands</button></p>`}
    ${shown >= commands.length && left > 0 && html`<p class="muted">${formatNumberOf(left, "older command")} not listed.</p>`}`;
}
