/** Whether the page is live: a word in its header, and a banner while the connection is lost. */

import { html } from "../vendor/htm-preact.js";
import { feed } from "./events.js";
import { useConnection } from "./hooks.js";

const WORDS = { connecting: "Connecting", live: "Live", lost: "Not connected" };

export function ConnectionState() {
  const state = useConnection();
  return html`<span class="connection ${state}"><span class="dot" aria-hidden="true"></span>${WORDS[state]}</span>`;
}

export function ConnectionBanner() {
  const state = useConnection();
  return html`<div role="alert">
    ${state === "lost" &&
    html`<div class="banner">
      <p><strong>The connection to the gateway is lost.</strong> What you see may be out of date. It is tried again.</p>
      <button type="button" onClick=${() => feed.connect()}>Try now</button>
    </div>`}
  </div>`;
}
