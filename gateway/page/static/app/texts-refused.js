/** Says that texts are not shown, and which settings allow them. */

import { html } from "../vendor/htm-preact.js";

export function TextsRefused() {
  return html`<div class="notice">
    <p><strong>Texts of this conversation are not shown.</strong></p>
    <p>To allow them, set <code>admin.token</code> in the settings, or <code>show_texts: true</code> in the policy of this
      conversation's tenant. Numbers are shown in any case.</p>
  </div>`;
}
