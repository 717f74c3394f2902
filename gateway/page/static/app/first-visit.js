/** What the page shows before the first request: how to point a client here. */

import { html, useEffect } from "../vendor/htm-preact.js";
import { api } from "./api.js";
import { CopyLine } from "./copy-line.js";
import { useLoaded } from "./hooks.js";

const NO_ADDRESS = "http://HOST:PORT";
const OPENAI_CLIENTS = {
  chat: "opencode, and whatever uses Chat Completions: set the base URL, by option or environment.",
  responses: "Codex, and whatever uses the Responses API: set the base URL, by option or environment.",
  both: "opencode, Codex, and whatever uses an OpenAI SDK: set the base URL, by option or environment.",
};

/** What the clients of these formats need to be let in, and where their key goes. */
function describeKey(clients) {
  if (clients.some(({ key }) => key === "tenant")) return "Its key is one of a tenant in the gateway's settings.";
  const passedOn = clients.filter(({ key }) => key === "caller");
  if (!passedOn.length) return "It needs no key of its own: the gateway has one. Where a client wants one, any will do.";
  const providers = [...new Set(passedOn.map(({ provider }) => provider.replace(/:443$/, "")))];
  return `It keeps its own key for ${providers.join(" and ")}, which the gateway passes on.`;
}

export function FirstVisit({ heading }) {
  const gateway = useLoaded((signal) => api.gateway(signal), []);
  useEffect(() => {
    document.title = "Waiting for the first request · Refold";
  }, []);
  const address = gateway.data?.data_url ?? NO_ADDRESS;
  const clients = gateway.data?.clients ?? [];
  const openai = clients.filter(({ format }) => format !== "messages");
  const anthropic = clients.filter(({ format }) => format === "messages");
  return html`<section class="first-visit" aria-labelledby="first-heading">
    <h1 id="first-heading" ref=${heading} tabindex="-1">Waiting for the first request</h1>
    <p>The gateway runs, and no conversation has come through it yet. Point a client here with one line.</p>
    <ol class="steps">
      ${openai.length > 0 && html`<li>
        <h2>OpenAI clients</h2>
        <p>${OPENAI_CLIENTS[openai.length > 1 ? "both" : openai[0].format]} ${describeKey(openai)}</p>
        <${CopyLine} label="Base URL for OpenAI clients" text=${`OPENAI_BASE_URL=${address}/v1`} />
      </li>`}
      ${anthropic.length > 0 && html`<li>
        <h2>Claude Code</h2>
        <p>And other clients of Anthropic's API. Without <code>/v1</code>. ${describeKey(anthropic)}</p>
        <${CopyLine} label="Base URL for Claude Code" text=${`ANTHROPIC_BASE_URL=${address}`} />
      </li>`}
    </ol>
    <p class="waiting" role="status"><span class="dot" aria-hidden="true"></span>
      This page shows the first conversation as soon as a request arrives.</p>
    <h2>What you will see then</h2>
    <ul class="plain">
      <li>each conversation with its tokens against the model's window, and what was saved and spent;</li>
      <li>what the client sent beside what the model got, message by message;</li>
      <li>each summary with its reason and cost, to read, edit and restore.</li>
    </ul>
  </section>`;
}
