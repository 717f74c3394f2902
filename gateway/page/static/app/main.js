/** Starts the page: connects to the events and shows the view that the address names. */

import { html, render, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { Announcer } from "./announce.js";
import { onTokenRequired, setToken } from "./api.js";
import { ConnectionBanner, ConnectionState } from "./connection.js";
import { Conversation } from "./conversation.js";
import { feed } from "./events.js";
import { Overview } from "./overview.js";
import { renderOverview, useRoute } from "./router.js";
import { TokenForm } from "./token-form.js";

function Page() {
  const route = useRoute();
  const token = useTokenState();
  const isFirst = useIsFirst(route.view + (route.id ?? ""));
  return html`
    <a class="skip" href="#main" onClick=${skipToMain}>Skip to content</a>
    <header class="top">
      <a class="brand" href=${renderOverview()}>
        <img src="icon.svg" alt="" width="20" height="20" />
        <span>Refold</span>
      </a>
      <${ConnectionState} />
    </header>
    <${ConnectionBanner} />
    <main id="main" tabindex="-1">
      ${token.isRequired
        ? html`<${TokenForm} wasRefused=${token.wasRefused} onToken=${token.use} />`
        : html`<${View} key=${`${route.id ?? ""} ${token.round}`} route=${route} isFirst=${isFirst} />`}
    </main>
    <${Announcer} />
  `;
}

function View({ route, isFirst }) {
  if (route.view === "conversation") return html`<${Conversation} id=${route.id} isFirst=${isFirst} />`;
  return html`<${Overview} query=${route.query} isFirst=${isFirst} />`;
}

/** Whether the server wants a token. `round` grows with each one, so that the view is loaded anew. */
function useTokenState() {
  const [state, setState] = useState({ isRequired: false, wasRefused: false, round: 0 });
  useEffect(() => onTokenRequired((wasRefused) => {
    setState((before) => ({ ...before, isRequired: true, wasRefused }));
  }), []);
  const use = (token) => {
    setToken(token);
    setState((before) => ({ isRequired: false, wasRefused: false, round: before.round + 1 }));
    feed.connect();
  };
  return { ...state, use };
}

/** Whether the page still shows the view that it was opened with: then the browser keeps the focus. */
function useIsFirst(name) {
  const first = useRef(name);
  if (first.current !== name) first.current = null;
  return first.current !== null;
}

/** Not by the fragment, which names the view. */
function skipToMain(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

feed.connect();
render(html`<${Page} />`, document.getElementById("page"));
