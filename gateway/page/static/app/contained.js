/** One row of a list. What fails while it is drawn stays in it, so the other rows and the page remain. */

import { Component, html } from "../vendor/htm-preact.js";

/** of: the element that says so in its place. */
export class Contained extends Component {
  static getDerivedStateFromError() {
    return { hasFailed: true };
  }

  render({ of: element, children }, { hasFailed }) {
    if (!hasFailed) return children;
    return html`<${element} class="pair"><p class="muted">This row cannot be shown. The gateway has it, and the API shows it.</p><//>`;
  }
}
