/** Edits a summary. What the gateway's checks say of the new text is shown beside it. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { announce } from "./announce.js";
import { api } from "./api.js";

export function SummaryEditor({ id, summary, onSaved, onCancel }) {
  const field = useRef(null);
  // Of the text that the reader began with, also if another one is saved in the meantime.
  const version = useRef(summary.version);
  const [problem, setProblem] = useState(null);
  const [isSaving, setSaving] = useState(false);
  const fieldId = `text-${summary.key}`;
  useEffect(() => field.current.focus(), []);
  const save = async (event) => {
    event.preventDefault();
    setSaving(true);
    try {
      const saved = await api.saveSummary(id, summary.key, field.current.value, version.current);
      announce(`Version ${saved.version} is saved. The next request uses it.`);
      onSaved();
    } catch (refused) {
      setProblem(refused);
      setSaving(false);
      field.current.focus();
    }
  };
  return html`<form class="editor" onSubmit=${save}>
    <label for=${fieldId}>Text of the summary</label>
    <p class="muted" id=${`${fieldId}-note`}>It becomes a new version and is used from the next request on. The provider reads the
      prompt anew once, as its cache no longer fits. Earlier versions stay and can be restored.</p>
    <textarea id=${fieldId} ref=${field} rows="16" dir="auto" required defaultValue=${summary.text}
      aria-invalid=${problem ? "true" : "false"} aria-describedby=${`${fieldId}-note ${fieldId}-error`}></textarea>
    <p class="error" role="alert" id=${`${fieldId}-error`}>${problem && `Not saved. ${problem.detail}`}</p>
    <div class="buttons">
      <button type="submit" class="primary" disabled=${isSaving}>Save as a new version</button>
      <button type="button" onClick=${onCancel}>Cancel</button>
    </div>
  </form>`;
}
