/** A row of figures, each with its name and a note. The first one leads. */

import { html } from "../vendor/htm-preact.js";

/** figures: triples of name, value and note, all texts. */
export function Figures({ figures }) {
  return html`<dl class="figures">
    ${figures.map(([name, value, note]) => html`<div key=${name}>
      <dt>${name}</dt>
      <dd><span class="value">${value}</span>${note && html`<span class="note">${note}</span>`}</dd>
    </div>`)}
  </dl>`;
}
