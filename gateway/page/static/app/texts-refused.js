/** Says why texts are not shown, and which setting allows them. */

import { html } from "../vendor/htm-preact.js";

/** reason: what the gateway says of it, if it does. */
export function TextsRefused({ reason }) {
  return html`<div class="notice">
    <p><strong>Texts of this conversation are not shown.</strong> ${reason}</p>
    <p>To allow them, set <code>admin.token</code> in the settings, or <code>show_texts: true</code> in the policy of this
      conversation's tenant. Numbers are shown in any case.</p>
  </div>`;
}
