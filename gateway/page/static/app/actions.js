/** What an operator can do with a conversation: compact it now, or delete it. */

import { html, useRef, useState } from "../vendor/htm-preact.js";
import { announce, countAnnouncements } from "./announce.js";
import { api } from "./api.js";
import { closeDialog, Dialog } from "./dialog.js";
import { formatCount, nameConversation } from "./format.js";
import { renderOverview } from "./router.js";

export function Actions({ row }) {
  const [open, setOpen] = useState(null);
  const close = () => setOpen(null);
  return html`<div class="actions">
    <button type="button" onClick=${() => setOpen("compact")}>Compact now …</button>
    <button type="button" class="danger" onClick=${() => setOpen("delete")}>Delete …</button>
    ${open === "compact" && html`<${CompactDialog} row=${row} onClose=${close} />`}
    ${open === "delete" && html`<${DeleteDialog} row=${row} onClose=${close} />`}
  </div>`;
}

/** `run(action)` calls the server once at a time. What it refuses is shown in the dialog. */
function useAction() {
  const [problem, setProblem] = useState(null);
  const [isRunning, setRunning] = useState(false);
  const run = async (action) => {
    setRunning(true);
    setProblem(null);
    try {
      return await action();
    } catch (refused) {
      setProblem(refused);
      return null;
    } finally {
      setRunning(false);
    }
  };
  return { problem, isRunning, run };
}

function CompactDialog({ row, onClose }) {
  const instructions = useRef(null);
  const { problem, isRunning, run } = useAction();
  const submit = async (event) => {
    event.preventDefault();
    const dialog = event.target.closest("dialog");
    const before = countAnnouncements();
    const answer = await run(() => api.compact(row.id, instructions.current.value.trim()));
    if (!answer) return;
    dialog.close();
    // The event that says how it ended may come before this answer.
    if (countAnnouncements() === before) announce(`The compaction begins ${answer.begins}.`);
  };
  return html`<${Dialog} title="Compact now" onClose=${onClose}>
    <p>Old turns become one summary, which is sent in their place from the next request on.
      ${row.body_in_memory === false && " The newest body is no longer in memory, so it begins with the next request."}</p>
    <form onSubmit=${submit}>
      <label for="instructions">Instructions for the summary (optional)</label>
      <textarea id="instructions" ref=${instructions} rows="4" maxlength="8000" dir="auto"
        placeholder="For example: keep all ticket numbers and file names"></textarea>
      <p class="error" role="alert">${problem?.detail}</p>
      <div class="buttons">
        <button type="submit" class="primary" disabled=${isRunning}>Compact</button>
        <button type="button" onClick=${closeDialog}>Cancel</button>
      </div>
    </form>
  <//>`;
}

function DeleteDialog({ row, onClose }) {
  const { problem, isRunning, run } = useAction();
  const remove = async () => {
    const answer = await run(() => api.deleteConversation(row.id));
    if (!answer) return;
    const records = Object.values(answer.deleted ?? {}).reduce((sum, count) => sum + count, 0);
    location.hash = renderOverview();
    announce(`${nameConversation(row)} is deleted, with ${formatCount(records)} records.`);
  };
  return html`<${Dialog} title="Delete this conversation?" onClose=${onClose}>
    <p>Everything that <strong><bdi>${nameConversation(row)}</bdi></strong> left here is deleted: its state, its summaries with
      all their versions, the originals of removed messages, and its numbers. This cannot be undone.</p>
    <p>The client keeps its own history. If it goes on, the gateway begins anew with it.</p>
    <p class="error" role="alert">${problem?.detail}</p>
    <div class="buttons">
      <button type="button" class="danger" disabled=${isRunning} onClick=${remove}>Delete conversation</button>
      <button type="button" onClick=${closeDialog} autofocus>Keep it</button>
    </div>
  <//>`;
}
