/** The text of a summary that is in use, and its original, which can be restored. */

import { html, useState } from "../vendor/htm-preact.js";
import { announce } from "./announce.js";
import { api } from "./api.js";
import { formatTime } from "./format.js";
import { LongText } from "./text-block.js";

export function Versions({ id, summary, onRestored }) {
  const [problem, setProblem] = useState(null);
  const restore = async (version) => {
    try {
      await api.restoreSummary(id, summary.key, version);
      announce(`Version ${version} is restored. The next request uses it.`);
      onRestored();
    } catch (refused) {
      setProblem(refused);
    }
  };
  const newestFirst = [...summary.versions].sort((one, other) => other.version - one.version);
  return html`
    <p class="error" role="alert">${problem?.detail}</p>
    <ol class="versions">
      ${newestFirst.map((version) => html`<${Version} key=${version.version} version=${version}
        isCurrent=${version.version === summary.version} canRestore=${summary.in_use} onRestore=${restore} />`)}
    </ol>
  `;
}

function Version({ version, isCurrent, canRestore, onRestore }) {
  const [isOpen, setOpen] = useState(false);
  const number = version.version;
  return html`<li>
    <div class="version-line">
      <strong>Version ${number}</strong>
      <span>${version.edited ? "edited" : "as made"}</span>
      <span class="muted">${formatTime(version.created)}</span>
      ${isCurrent && html`<span class="badge in-use">current</span>`}
      <span class="buttons">
        <button type="button" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)} aria-label=${`Read version ${number}`}>Read</button>
        ${!isCurrent && canRestore &&
        html`<button type="button" onClick=${() => onRestore(number)} aria-label=${`Restore version ${number}`}>Restore</button>`}
      </span>
    </div>
    ${isOpen && html`<div class="summary-text"><${LongText} text=${version.text ?? "(its text is not shown)"} /></div>`}
  </li>`;
}
