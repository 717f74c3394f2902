/** Asks for the token of the admin port. */

import { html, useEffect, useRef } from "../vendor/htm-preact.js";

export function TokenForm({ wasRefused, onToken }) {
  const field = useRef(null);
  useEffect(() => field.current.focus(), [wasRefused]);
  const submit = (event) => {
    event.preventDefault();
    const token = field.current.value.trim();
    if (token) onToken(token);
  };
  return html`<section class="token" aria-labelledby="token-heading">
    <h1 id="token-heading">Token required</h1>
    <p>This gateway shows its data only to those who know the value of <code>admin.token</code> in its settings. The
      token is kept until this tab is closed.</p>
    <form onSubmit=${submit}>
      <label for="token">Admin token</label>
      <div class="field-row">
        <input id="token" ref=${field} type="password" autocomplete="off" spellcheck="false" required
          aria-invalid=${wasRefused ? "true" : "false"} aria-describedby="token-error" />
        <button type="submit" class="primary">Continue</button>
      </div>
      <p id="token-error" class="error" role="alert">${wasRefused && "The gateway does not accept this token."}</p>
    </form>
  </section>`;
}
